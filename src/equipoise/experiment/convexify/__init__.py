"""Train-Convexify-Train (Yu et al. 2022): a convex problem on the gradient features of a trained network.

stages           from a run's configuration to the network of stage 1, and to the problem on its features
features         of a network's gradients at its trained parameters
torch_features   the sizes of a PyTorch module's, which only its sites can make
models           what is saved in the end: linear in the features, or in the network's own parameters
"""
