"""This package moves weights between processes: tickets that name them, a sender in the trainer, a receiver in the
server."""

from ale_torch.weights.tickets import BroadcastTicket, GlooTicket, IpcTicket, NcclTicket, TensorSpec

__all__ = ["BroadcastTicket", "GlooTicket", "IpcTicket", "NcclTicket", "TensorSpec"]
