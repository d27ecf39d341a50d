"""Training and retraining of relation models, explicit negatives included."""
