"""What the example shop answers by HTTP."""
