"""Runs Pods as processes of this machine: what the kubelet and a container runtime do on a node.

KWOK marks Pods as running without starting anything. This agent starts their containers from the root filesystem of an
OCI archive, in mount, PID, IPC and UTS namespaces of their own. The network is that of the machine: a container must
listen on the address of its Pod (`status.podIP`), not on all addresses. It needs root.

Not supported: exec and gRPC probes, logs and exec by kubectl, volumes other than those of `volumes.py`, sidecars,
resource limits, and changes of mounted Secrets and ConfigMaps. Mounted tokens are renewed.
"""
