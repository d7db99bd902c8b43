// A small network for tests: hosts and a switch in network namespaces of their own, veth links between them.
//
//   host h: eth0, 10.99.0.(h+1) --- port "p<h>" of the switch, a bridge with 10.99.1.1
//
// Cut links end in a namespace without addresses, where somebody has to carry frames from one end to the other. Hosts
// hand over one datagram at a time then, so that one frame is one packet.
//
//   host h: eth0 --- "h<h>"   "s<h>" --- port "p<h>" of the switch
//
// The namespaces have no names, so they go with the process, however it ends.
#ifndef NETSUM_TESTS_CONFORMANCE_VETH_LAB_H_
#define NETSUM_TESTS_CONFORMANCE_VETH_LAB_H_

#include <memory>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/net/address.h"
#include "tests/conformance/frames.h"

namespace netsum::conformance {

class VethLab {
 public:
  struct Options {
    int mtu = 1500;
    bool cut_links = false;
    bool known_neighbours = false;  // the hosts know each other's MAC addresses from the start
  };
  // Errors: kPermissionDenied (needs CAP_SYS_ADMIN and CAP_NET_ADMIN), kUnsupported (what failed).
  static Result<std::unique_ptr<VethLab>> make(int hosts, const Options& options);
  ~VethLab();

  // While it lives, what this thread makes (sockets, threads, processes) is in the namespace.
  class Inside {
   public:
    explicit Inside(int network_namespace);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    int before_;
  };
  Inside in_switch() const { return Inside(switch_); }
  Inside in_host(int host) const { return Inside(hosts_[static_cast<size_t>(host)]); }
  Inside between() const { return Inside(between_); }  // where the ends of cut links are

  // An iproute2 command there, e.g. "link set eth0 down".
  Status ip_in_host(int host, const std::string& command) const;
  // Sends a whole Ethernet frame out of the host's eth0, whatever addresses it has. False if it was not sent.
  bool send_frame(int host, const Bytes& frame) const;
  Mac switch_mac() const;  // of the bridge
  Mac host_mac(int host) const;

  std::vector<std::string> ports() const;
  static Address switch_address(uint16_t port = 0);
  static Address host_address(int host, uint16_t port = 0);

 private:
  VethLab() = default;
  Status connect(int host, int mtu) const;
  Status introduce_hosts() const;
  static Mac mac_here(const char* interface);

  int switch_ = -1;
  int between_ = -1;  // unless links are whole
  std::vector<int> hosts_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_VETH_LAB_H_
