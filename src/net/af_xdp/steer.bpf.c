/* Hands the datagrams of one UDP endpoint to its AF_XDP socket, on whichever receive queue they come in; all
 * other traffic passes untouched. What is odd about a datagram (options, fragments, a VLAN tag, a wrong
 * length or header checksum) also passes, so that the kernel judges it as it judges any other. */
#include <linux/bpf.h>
/* bpf_helpers.h needs linux/bpf.h before it. */
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <stdint.h>

/* Set by the loader, in network order. */
const volatile uint32_t local_ip;
const volatile uint16_t local_port;

/* By receive queue. A queue without a socket lets its packets pass. */
struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, uint32_t);
} sockets SEC(".maps");

/* One's complement sum of a 20-byte IP header; 0xFFFF if its checksum is right. */
static __always_inline uint16_t ip_sum(const void* ip) {
  const uint16_t* words = ip;
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 10; ++i) sum += words[i];
  sum = (sum & 0xFFFF) + (sum >> 16);
  return (uint16_t)(sum + (sum >> 16));
}

SEC("xdp")
int netsum_steer(struct xdp_md* ctx) {
  const uint8_t* data = (const void*)(long)ctx->data;
  const void* end = (const void*)(long)ctx->data_end;
  const struct ethhdr* eth = (const void*)data;
  const struct iphdr* ip = (const void*)(eth + 1);
  const struct udphdr* udp = (const void*)(ip + 1);
  if ((const void*)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP)) return XDP_PASS;
  if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP || ip->daddr != local_ip)
    return XDP_PASS;
  /* More fragments, or not the first. */
  if ((ip->frag_off & bpf_htons(0x3FFF)) != 0 || udp->dest != local_port) return XDP_PASS;
  /* Short frames are padded, so the frame may be longer than the packet. */
  const uint32_t ip_bytes = bpf_ntohs(ip->tot_len), udp_bytes = bpf_ntohs(udp->len);
  const uint32_t frame_bytes = (uint32_t)((const uint8_t*)end - data);
  if (udp_bytes < sizeof *udp || udp_bytes + sizeof *ip != ip_bytes || ip_bytes + sizeof *eth > frame_bytes) {
    return XDP_PASS;
  }
  if (ip_sum(ip) != 0xFFFF) return XDP_PASS;
  return (int)bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
