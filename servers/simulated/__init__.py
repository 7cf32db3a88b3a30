"""An OpenAI-style server that computes nothing and knows the truth.

*Paced*: token times drawn from distributions. *Modelled*: token times from a discrete-event
model of a serving engine, whose limits are known beforehand. Either way ``GET /truth`` tells
when each token was really written.
"""
