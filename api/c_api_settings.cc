// Settings as options of the C ABI: the counterpart of read_options() in c_api.cc.
#include "netsum/netsum.h"
#include "netsum/settings.h"

namespace netsum {

void Settings::write(netsum_comm_options* out) const {
  const CommunicatorOptions& in = options();
  const auto in_milliseconds = [](std::chrono::milliseconds time) {
    return time.count() == 0 ? -1 : time.count();
  };
  out->aggregators = aggregators_.c_str();
  out->aggregator_token = in.aggregator_token.c_str();
  out->fallback_aggregators = fallback_aggregators_.c_str();
  out->bind_address = in.bind_address.c_str();
  out->host = in.host.c_str();
  out->metrics_address = in.metrics_address.c_str();
  out->trace_path = in.trace_path.c_str();
  out->tls_ca_cert = in.tls.ca_cert.c_str();
  out->tls_cert = in.tls.cert.c_str();
  out->tls_private_key = in.tls.private_key.c_str();
  out->mtu = in.mtu;
  out->slots = in.slots;
  out->packet_io = static_cast<netsum_packet_io>(in.packet_io);
  out->engine_threads = in.engine_threads == 0 ? -1 : in.engine_threads;
  out->no_spin = in.spin.count() == 0 ? 1 : 0;
  out->spin_us = in.spin.count();
  out->no_predict_scales = in.predict_scales ? 0 : 1;
  out->no_shared_memory = in.shared_memory ? 0 : 1;
  out->lane_bits = in.lane_bits;
  out->shares = static_cast<netsum_shares>(static_cast<int>(in.shares) + NETSUM_SHARES_OFF);
  out->verify = static_cast<netsum_verify>(in.verify);
  out->numerics = static_cast<netsum_numerics>(in.numerics);
  out->link_rate_bps = in.link_rate_bps;
  out->pace_bps = in.pace_bps;
  out->connect_timeout_ms = in.connect_timeout.count();
  out->liveness_timeout_ms = in_milliseconds(in.liveness_timeout);
  out->failover = in.on_failure == FailurePolicy::kFailover ? 1 : 0;
  out->failover_timeout_ms = in.failover_timeout.count();
  out->when_full = static_cast<netsum_when_full>(in.when_full);
  out->inject_loss = in.inject.loss;
  out->inject_seed = in.inject.seed;
}

}  // namespace netsum
