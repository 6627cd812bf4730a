"""What an optimiser of DeepSpeed holds: its gradients as flat tensors, and its memory while a learner sleeps."""
