"""Products of activations with weights, their backward, and the parts in which a mesh sends what they need."""
