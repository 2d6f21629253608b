"""The study of loss landscapes: lines and slices through real runs' weights, and what they say."""
