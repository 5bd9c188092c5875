#!/usr/bin/env python3
"""Trains a small convolutional network on Fashion-MNIST, as a user of Horovod writes it:

    mpirun -np 2 python3 fashion_mnist.py
"""
import argparse
import gzip
import pathlib

import numpy
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import guozhuang.torch as hvd

MEAN, DEVIATION = 0.2860, 0.3530  # of all training pixels as fractions of 255


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 8, kernel_size=5)
        self.conv2 = torch.nn.Conv2d(8, 16, kernel_size=5)
        self.fc1 = torch.nn.Linear(256, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, images):
        hidden = functional.relu(functional.max_pool2d(self.conv1(images), 2))
        hidden = functional.relu(functional.max_pool2d(self.conv2(hidden), 2))
        return self.fc2(functional.relu(self.fc1(hidden.flatten(1))))


def load(folder, prefix, samples):
    """The first samples of a pair of gzipped idx files, which have headers of 16 and 8 bytes."""
    images, labels = (
        numpy.frombuffer(gzip.open(folder / f"{prefix}-{name}-ubyte.gz").read()[skip:], numpy.uint8)
        for name, skip in (("images-idx3", 16), ("labels-idx1", 8)))
    images = torch.from_numpy(images.reshape(-1, 1, 28, 28)[:samples].copy()).float() / 255
    return TensorDataset((images - MEAN) / DEVIATION,
                         torch.from_numpy(labels[:samples].copy()).long())


def loader(dataset, batch, shuffle, seed=0):
    """This rank's share of the samples."""
    sampler = DistributedSampler(dataset, hvd.size(), hvd.rank(), shuffle=shuffle, seed=seed)
    return DataLoader(dataset, batch_size=batch, sampler=sampler)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train_epoch(model, optimizer, batches):
    """The loss of each batch, averaged over the ranks."""
    model.train()
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(metric_average(loss.item(), "loss"))
    return losses


def test(model, batches):
    """The fraction of samples that the model is right about."""
    model.eval()
    correct = 0.0
    with torch.no_grad():
        for images, labels in batches:
            correct += (model(images).argmax(1) == labels).sum().item()
    return metric_average(correct / len(batches.sampler), "accuracy")


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--samples", type=int, default=60000, help="to train with")
    parser.add_argument("--fp16-allreduce", action="store_true", help="compress gradients")
    parser.add_argument("--use-adasum", action="store_true", help="combine steps by Adasum")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--data", type=pathlib.Path,
                        default=pathlib.Path("/usr/share/datasets/fashion-mnist"),
                        help="as the Debian package dataset-fashion-mnist installs it")
    parser.add_argument("--log-losses", help="a file for the loss of each step")
    return parser.parse_args(arguments)


def make_optimizer(model, options):
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if options.use_adasum else hvd.Average,
        gradient_predivide_factor=options.gradient_predivide_factor)


def main(options):
    """Trains, and returns the model, the losses and the accuracy."""
    hvd.init()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    training = load(options.data, "train", options.samples)
    batches = loader(training, options.batch_size // hvd.size(), True, options.seed)
    test_batches = loader(load(options.data, "t10k", options.samples), 1000, False)
    model = Network()
    optimizer = make_optimizer(model, options)
    losses = []
    for epoch in range(options.epochs):
        batches.sampler.set_epoch(epoch)
        losses += train_epoch(model, optimizer, batches)
        accuracy = test(model, test_batches)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, accuracy {accuracy:.4f}", flush=True)
    if hvd.rank() == 0 and options.log_losses:
        numpy.savetxt(options.log_losses, losses, "%.8f")
    return model, losses, accuracy


if __name__ == "__main__":
    main(parse())
