/* Sends every large frame to all members of a device map, whole or as far as the kernel copies it (frames_probe.cc). */
#include <linux/bpf.h>
/* bpf_helpers.h needs linux/bpf.h before it. */
#include <bpf/bpf_helpers.h>

struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP);
  __uint(max_entries, 8);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, sizeof(__u32));
} targets SEC(".maps");

SEC("xdp.frags")
int broadcast(struct xdp_md* ctx) {
  return ctx->data_end - ctx->data < 1000 ? XDP_PASS : (int)bpf_redirect_map(&targets, 0, BPF_F_BROADCAST);
}

SEC("xdp.frags")
int pass(struct xdp_md* ctx) {
  (void)ctx;
  return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
