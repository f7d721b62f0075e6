"""What torchrun starts in a test: `zerolab.run` on ranks of the contract."""

import contract
import torch.distributed as dist

from zerolab import run

if __name__ == "__main__":
    contract.install()
    join = dist.init_process_group
    dist.init_process_group = lambda _, **keywords: join(contract.BACKEND, **keywords)
    with contract.InFlight(0):
        run.main()
