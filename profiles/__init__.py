"""Step clock, traces, attribution, workload and hardware facts."""
