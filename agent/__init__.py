"""What starts inside the job: bootstrap, run specification, records, settings and clock."""
