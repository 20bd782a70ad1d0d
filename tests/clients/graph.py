"""torch_geometric: a graph as a whole each step, so no DataLoader."""

import torch
from told import STEPS, tell
from torch.nn import functional
from torch_geometric import seed_everything
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GCNConv

seed_everything(0)  # the graph and its classes are drawn
data = FakeDataset(num_graphs=1, avg_num_nodes=2000, avg_degree=8, num_channels=32, task="node")[0]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GCNConv(32, 64), GCNConv(64, int(data.y.max()) + 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Score every node."""
        scores: torch.Tensor = self.last(functional.relu(self.first(x, edges)), edges)
        return scores


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(STEPS):
    optimizer.zero_grad()
    functional.cross_entropy(model(data.x, data.edge_index), data.y).backward()
    optimizer.step()
    tell("step", step=step + 1)
tell("end", step=STEPS)
