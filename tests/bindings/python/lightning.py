"""PyTorch Lightning's own Horovod strategy under the alias: it trains as one process does with the
batches of all ranks. Lightning has it up to version 1.9."""
import logging
import warnings

import guozhuang

guozhuang.as_horovod()
warnings.simplefilter("ignore")  # of what is old in Lightning
import pytorch_lightning as lightning  # noqa: E402
import torch  # noqa: E402
from pytorch_lightning.strategies import SingleDeviceStrategy  # noqa: E402

SAMPLES, BATCH = 48, 12
# Lightning 1.6 imports this part of PyTorch in each module; that of 1.13 fails in Python 3.11.
lightning.LightningModule._register_sharded_tensor_state_dict_hooks_if_available = lambda _: None


class Module(lightning.LightningModule):
    def __init__(self, learning_rate, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        self.learning_rate = learning_rate

    def loss(self, batch, name):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.log(name, loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def training_step(self, batch, _):
        return self.loss(batch, "training")

    def validation_step(self, batch, _):
        self.loss(batch, "validation")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.5)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def train(strategy, rank, size):
    """Trains with every `size`-th sample, and returns the losses and the sum of the parameters. The
    ranks begin with different parameters, of which those of rank 0 count, and Lightning multiplies
    their learning rate by their number."""
    inputs = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1)).double()
    samples = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(samples, range(rank, SAMPLES, size)), batch_size=BATCH // size)
    module = Module(0.1 / size, seed=rank)
    trainer = lightning.Trainer(
        strategy=strategy, max_epochs=4, gradient_clip_val=0.5, replace_sampler_ddp=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    trainer.fit(module, loader, loader)
    found = [*trainer.callback_metrics.values(), sum(each.sum() for each in module.parameters())]
    return " ".join(f"{each:.6f}" for each in found)


def main():
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    alone = train(SingleDeviceStrategy("cpu"), 0, 1)  # else mpirun's variables ask for Horovod's
    guozhuang.init()
    rank, size = guozhuang.rank(), guozhuang.size()
    print(f"rank {rank} of {size}: {train('horovod', rank, size)}, alone {alone}\n", end="",
          flush=True)


if __name__ == "__main__":
    main()
