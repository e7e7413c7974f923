"""Agreement with the loss and advantage code of TRL and verl, called as they published it."""
