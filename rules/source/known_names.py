"""What names of libraries mean to a training script: roles of what calls return, and which calls are collectives."""

import functools
import re

# Full names under which torch and others export one thing more than once; the first word is replaced by the second.
SPELLINGS = (
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("torch.distributed.device_mesh.", "torch.distributed."),
    ("torch.distributed.fsdp.fully_sharded_data_parallel.", "torch.distributed.fsdp."),
    ("torch.distributed._composable.fsdp.", "torch.distributed.fsdp."),
    ("torch.nn.parallel.distributed.", "torch.nn.parallel."),
    ("torch.nn.parallel.data_parallel.", "torch.nn.parallel."),
    ("torch.utils.data.distributed.", "torch.utils.data."),
    ("torch.utils.data.dataloader.", "torch.utils.data."),
    ("torch.utils.data.dataset.", "torch.utils.data."),
    ("torch.utils.data.sampler.", "torch.utils.data."),
    ("torch.amp.grad_scaler.", "torch.amp."),
    ("torch.cuda.amp.grad_scaler.", "torch.cuda.amp."),
    ("torch.optim.adamw.", "torch.optim."),
    ("torch.optim.sgd.", "torch.optim."),
    ("torch.optim.adam.", "torch.optim."),
    ("torch.nn.utils.clip_grad.", "torch.nn.utils."),
    ("torch.multiprocessing.spawn.", "torch.multiprocessing."),
    ("torch.nn.modules.batchnorm.", "torch.nn."),
    ("pytorch_lightning.", "lightning.pytorch."),
    ("lightning_fabric.", "lightning.fabric."),
    ("accelerate.accelerator.", "accelerate."),
)
SAME = {
    "torch.nn.DataParallel": "torch.nn.parallel.DataParallel",
    "torch.nn.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "os.getenv": "os.environ.get",
    "lightning.Fabric": "lightning.fabric.Fabric",
    "lightning.Trainer": "lightning.pytorch.Trainer",
    "lightning.LightningModule": "lightning.pytorch.LightningModule",
    "lightning.pytorch.core.LightningModule": "lightning.pytorch.LightningModule",
    "lightning.LightningDataModule": "lightning.pytorch.LightningDataModule",
    "tqdm.auto.tqdm": "tqdm.tqdm",
    "tqdm.notebook.tqdm": "tqdm.tqdm",
    "torch.multiprocessing.spawn.spawn": "torch.multiprocessing.spawn",
}

DDP = "torch.nn.parallel.DistributedDataParallel"
FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP2 = "torch.distributed.fsdp.fully_shard"
SAMPLER = "torch.utils.data.DistributedSampler"
LOADER = "torch.utils.data.DataLoader"

# Full name of a function or class -> role of what calling it returns; a star stands for anything.
ROLES: tuple[tuple[str, str], ...] = (
    (DDP, "ddp"),
    ("apex.parallel.DistributedDataParallel", "ddp"),
    (FSDP1, "fsdp"),
    ("torch.distributed.fsdp.wrap.wrap", "model"),
    ("torch.nn.parallel.DataParallel", "dp"),
    ("torch.compile", "compiled"),
    ("torch.distributed.get_rank", "rank"),
    ("torch.distributed.get_node_local_rank", "local_rank"),
    ("torch.distributed.get_world_size", "world_size"),
    ("torch.distributed.new_group", "group"),
    ("torch.distributed.init_device_mesh", "mesh"),
    (LOADER, "loader"),
    ("torchdata.stateful_dataloader.StatefulDataLoader", "loader"),
    ("torch_geometric.loader.DataLoader", "loader"),
    (SAMPLER, "sampler"),
    ("torch.utils.data.*Sampler", "plain_sampler"),
    ("torch.utils.data.TensorDataset", "dataset"),
    ("torch.utils.data.Subset", "dataset"),
    ("torch.utils.data.ConcatDataset", "dataset"),
    ("torchvision.datasets.*", "dataset"),
    ("torchtext.datasets.*", "dataset"),
    ("datasets.load_dataset", "hf_dataset"),
    ("datasets.load_from_disk", "hf_dataset"),
    ("datasets.distributed.split_dataset_by_node", "split_dataset"),
    ("torch.optim.lr_scheduler.*", "scheduler"),
    ("transformers.get_*_schedule*", "scheduler"),
    ("transformers.get_scheduler", "scheduler"),
    ("transformers.optimization.get_*", "scheduler"),
    ("torch.optim.*", "optimizer"),
    ("torch.distributed.optim.ZeroRedundancyOptimizer", "optimizer"),
    ("bitsandbytes.optim.*", "optimizer"),
    ("apex.optimizers.*", "optimizer"),
    ("transformers.Adafactor", "optimizer"),
    ("transformers.AdamW", "optimizer"),
    ("timm.optim.create_optimizer*", "optimizer"),
    ("torch.cuda.amp.GradScaler", "scaler"),
    ("torch.amp.GradScaler", "scaler"),
    ("torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler", "sharded_scaler"),
    ("accelerate.Accelerator", "accelerator"),
    ("accelerate.PartialState", "accelerator"),
    ("accelerate.state.*State", "accelerator"),
    ("lightning.fabric.Fabric", "fabric"),
    ("lightning.pytorch.Trainer", "trainer"),
    ("transformers.*Trainer", "trainer"),
    ("trl.*Trainer", "trainer"),
    ("torch.utils.tensorboard.SummaryWriter", "tracker"),
    ("torch.utils.tensorboard.writer.SummaryWriter", "tracker"),
    ("tensorboardX.SummaryWriter", "tracker"),
    ("wandb.init", "tracker"),
    ("swanlab.init", "tracker"),
    ("comet_ml.Experiment", "tracker"),
    ("comet_ml.start", "tracker"),
    ("neptune.init*", "tracker"),
    ("clearml.Task.init", "tracker"),
    ("aim.Run", "tracker"),
    ("mlflow.start_run", "tracker"),
    ("transformers.Auto*Tokenizer*", "tokenizer"),
    ("transformers.*TokenizerFast.from_pretrained", "tokenizer"),
    ("transformers.AutoTokenizer.from_pretrained", "tokenizer"),
    ("transformers.AutoProcessor.from_pretrained", "tokenizer"),
    ("tokenizers.Tokenizer*", "tokenizer"),
    ("transformers.Auto*Config*", ""),
    ("transformers.AutoModel*", "model"),
    ("transformers.*Model.from_pretrained", "model"),
    ("transformers.*For*.from_pretrained", "model"),
    ("transformers.*Model", "model"),
    ("transformers.*LMHeadModel", "model"),
    ("transformers.*For*", "model"),
    ("torchvision.models.*", "model"),
    ("timm.create_model", "model"),
    ("timm.models.*", "model"),
    ("peft.get_peft_model", "model"),
    ("torch.hub.load", "model"),
    ("torch.nn.SyncBatchNorm.convert_sync_batchnorm", "model"),
    ("torch.nn.functional.*", "tensor"),
    ("torch.nn.utils.*", ""),
    ("torch.nn.init.*", ""),
    ("torch.nn.Parameter", "parameter"),
    ("torch.nn.*Loss*", "loss_fn"),
    ("torch.nn.*", "model"),
    ("torch.device", "device"),
    ("torch.load", "checkpoint"),
    ("time.time", "clock"),
    ("time.perf_counter", "clock"),
    ("time.monotonic", "clock"),
    ("datetime.datetime.now", "clock"),
)
# Base classes -> role of what their subclasses make.
BASES: tuple[tuple[str, str], ...] = (
    ("torch.nn.Module", "model"),
    ("torch.nn.parallel.DistributedDataParallel", "ddp"),
    ("torch.utils.data.Dataset", "dataset"),
    ("torchvision.datasets.*", "dataset"),
    ("torch.utils.data.IterableDataset", "iterable"),
    ("torchdata.*", "iterable"),
    ("torch.utils.data.DistributedSampler", "sampler"),
    ("torch.utils.data.*Sampler", "own_sampler"),
    ("torch.utils.data.DataLoader", "loader"),
    ("torch.optim.lr_scheduler.*", "scheduler"),
    ("torch.optim.*", "optimizer"),
    ("lightning.pytorch.LightningModule", "lightning_module"),
    ("lightning.pytorch.LightningDataModule", "lightning_data"),
    ("transformers.PreTrainedModel", "model"),
    ("transformers.*Trainer", "trainer"),
    ("trl.*Trainer", "trainer"),
    ("torch.autograd.Function", "function"),
    ("torch.nn.*Loss*", "loss_fn"),
    ("torch.nn.*", "model"),
)
# Variables of the environment that launchers set -> role of their value.
VARIABLES = {
    "RANK": "rank",
    "SLURM_PROCID": "rank",
    "OMPI_COMM_WORLD_RANK": "rank",
    "PMI_RANK": "rank",
    "LOCAL_RANK": "local_rank",
    "SLURM_LOCALID": "local_rank",
    "OMPI_COMM_WORLD_LOCAL_RANK": "local_rank",
    "WORLD_SIZE": "world_size",
    "LOCAL_WORLD_SIZE": "world_size",
    "SLURM_NTASKS": "world_size",
}
# Attributes and names of things that the walk knows nothing about -> role that their name tells.
TOLD_BY_NAME = (
    (re.compile(r"(?i)^_?(local_rank|local_process_index|gpu_rank|local_rank_id|lrank|get_local_rank)$"), "local_rank"),
    (
        re.compile(r"(?i)^_?(rank|global_rank|process_index|world_rank|dist_rank|ddp_rank|get_rank|get_global_rank)$"),
        "rank",
    ),
    (
        re.compile(r"(?i)^_?(world_size|num_processes|n_ranks|num_ranks|ddp_world_size|num_replicas|get_world_size)$"),
        "world_size",
    ),
)
IS_FIRST = re.compile(
    r"(?i)^_?(is_)?(global_|world_|dist_)?(main|master|primary|chief|rank_?(zero|0)|zero_rank|root|process_zero|coordinator)"
    r"(_process|_rank|_proc|_node|_worker)?(_zero)?$|^is_global_zero$|^is_world_process_zero$|^is_rank_?(0|zero)$"
)
IS_LOCAL_FIRST = re.compile(r"(?i)^_?is_local_(main|master)(_process)?$|^is_local_process_zero$|^is_local_zero$")
IS_DISTRIBUTED = re.compile(
    r"(?i)^_?(is_|use_|using_|enable_|in_)?(distributed|ddp|dist|fsdp|multi_?gpus?|multi_?node|parallel|multiprocessing_distributed"
    r"|distributed_training|dist_available(_and_initialized)?|dist_initialized|dist_avail_and_initialized)(_run|_mode|_training|_enabled)?$"
)
IN_GROUP = re.compile(  # a rank within a group of ranks
    r"(?i)^_?(tp|dp|pp|cp|sp|ep|mp|fsdp|hsdp|shard|replica|data|tensor|pipeline|model|context|sequence|expert|stage|group"
    r"|node|data_parallel|tensor_parallel|pipeline_parallel|model_parallel|expert_parallel|intra_node|inter_node)_rank$"
)

OF_FSDP1 = ("optim_state_dict", "full_optim_state_dict", "scatter_full_optim_state_dict", "summon_full_params")
COLLECTIVES = frozenset(f"{FSDP1}.{name}" for name in OF_FSDP1) | frozenset(
    f"torch.distributed.{name}"
    for name in (
        *("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "reduce", "reduce_scatter"),
        *("reduce_scatter_tensor", "broadcast", "broadcast_object_list", "barrier", "monitored_barrier", "gather"),
        *("gather_object", "scatter", "scatter_object_list", "all_to_all", "all_to_all_single", "all_reduce_coalesced"),
        *("nn.functional.all_reduce", "nn.all_reduce", "nn.all_gather", "nn.functional.all_gather"),
        *("_all_gather_base", "init_process_group", "new_group", "new_subgroups", "init_device_mesh"),
    )
)
# Methods that all ranks must call: role of the object, method.
COLLECTIVE_METHODS = frozenset(
    {
        ("accelerator", "wait_for_everyone"),
        ("accelerator", "gather"),
        ("accelerator", "gather_for_metrics"),
        ("accelerator", "reduce"),
        ("accelerator", "pad_across_processes"),
        ("accelerator", "save_state"),
        ("accelerator", "load_state"),
        ("accelerator", "prepare"),
        ("accelerator", "backward"),
        ("fabric", "barrier"),
        ("fabric", "all_reduce"),
        ("fabric", "all_gather"),
        ("fabric", "broadcast"),
        ("fabric", "save"),
        ("fabric", "load"),
        ("fabric", "backward"),
        ("fabric", "setup"),
        ("trainer", "save_checkpoint"),
        ("engine", "save_checkpoint"),
        ("engine", "load_checkpoint"),
        ("engine", "save_16bit_model"),
        ("engine", "backward"),
        ("engine", "step"),
        ("engine", "forward"),
        ("fsdp", "clip_grad_norm_"),
    }
)
CHECKPOINT_COLLECTIVES = frozenset(
    f"torch.distributed.checkpoint.{name}"
    for name in (
        *("save", "load", "async_save", "save_state_dict", "load_state_dict", "state_dict_saver.save"),
        "state_dict_loader.load",
    )
)
STATE_DICT_GETTERS = frozenset(
    f"torch.distributed.checkpoint.state_dict.{name}"
    for name in (
        *("get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "set_model_state_dict"),
        *("set_optimizer_state_dict", "set_state_dict"),
    )
)
# Decorators that let only one rank in.
FIRST_ONLY = re.compile(
    r"(?i)(rank_zero_only|on_main_process|master_only|main_process_only|rank0_only|on_rank_zero|only_on_main)$"
)
LOCAL_ONLY = re.compile(r"(?i)on_local_main_process$")


@functools.lru_cache(maxsize=8192)
def canonical(name: str) -> str:
    """Return the one name of what libraries export under several."""
    for old, new in SPELLINGS:
        if name.startswith(old):
            name = new + name[len(old) :]
    return SAME.get(name, name)
