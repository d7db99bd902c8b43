/* A stretch of a link that loses frames: what comes in at one of its two interfaces leaves by the other, or
 * is lost by chance. It sees single frames of any size and kind, as a cable would: towards an interface with
 * an XDP program the kernel sends no segmented packets. (The kernel's random numbers have no seed.) */
#include <linux/bpf.h>
/* bpf_helpers.h needs linux/bpf.h before it. */
#include <bpf/bpf_helpers.h>

#include "tools/netsum/rack_loss_maps.h"

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1024);
  __type(key, uint32_t);
  __type(value, struct netsum_stretch);
} stretches SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
  __uint(max_entries, 1024);
  __type(key, uint32_t);
  __type(value, struct netsum_stretch_counts);
} stretch_counts SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 22);
} frames SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct netsum_capture);
} capture SEC(".maps");

static __always_inline void note_frame(struct xdp_md* ctx, uint32_t from) {
  const uint32_t only = 0;
  struct netsum_capture* wanted = bpf_map_lookup_elem(&capture, &only);
  if (!wanted || !wanted->on) return;
  struct netsum_frame frame = {
      .at_ns = bpf_ktime_get_ns(), .from = from, .bytes = (uint32_t)bpf_xdp_get_buff_len(ctx)};
  if (bpf_ringbuf_output(&frames, &frame, sizeof frame, 0) != 0) __sync_fetch_and_add(&wanted->left_out, 1);
}

SEC("xdp.frags")
int netsum_lossy_link(struct xdp_md* ctx) {
  const uint32_t from = ctx->ingress_ifindex;
  const struct netsum_stretch* stretch = bpf_map_lookup_elem(&stretches, &from);
  struct netsum_stretch_counts* counts = bpf_map_lookup_elem(&stretch_counts, &from);
  if (!stretch || !counts) return XDP_ABORTED;
  note_frame(ctx, from);
  if (bpf_get_prandom_u32() < stretch->threshold) {
    ++counts->lost;
    return XDP_DROP;
  }
  ++counts->passed;
  return (int)bpf_redirect(stretch->to, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
