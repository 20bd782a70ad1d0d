"""Goes on the job's PYTHONPATH: it holds the sitecustomize that starts the agent."""
