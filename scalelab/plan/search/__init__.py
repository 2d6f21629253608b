"""What can be changed so that a plan fits or is faster: levers, layouts by time, the nearest that fits, advice."""
