"""Train-Convexify-Train (Yu et al. 2022): a convex problem on the gradient features of a trained network.

stages     from a run's configuration to the network of stage 1, and to the problem on its features
features   of gradients at its trained parameters, of a PyTorch module too, and the models that are saved in the end
"""
