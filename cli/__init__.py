"""The verbs of the aiak-tune command, a file each."""
