"""What a run chooses instead of being told: step sizes of networks, the penalty, the price of fairness."""
