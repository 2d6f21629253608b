"""What a run will take before it is launched: parameters, FLOPs, memory, time, money."""
