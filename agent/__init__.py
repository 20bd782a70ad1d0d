"""What starts inside the job: bootstrap, run specification, records, and the wiring of settings and clock."""
