"""What `easyr1 init` writes: settings, reward, template, README, and a few rows that stand for one's own."""
