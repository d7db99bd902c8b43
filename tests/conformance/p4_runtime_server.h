// A P4Runtime server in this process, in front of tables that are only kept: a switch as its control plane sees it, which
// misbehaves on demand.
#ifndef NETSUM_TESTS_CONFORMANCE_P4_RUNTIME_SERVER_H_
#define NETSUM_TESTS_CONFORMANCE_P4_RUNTIME_SERVER_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/p4/driver/p4runtime.pb.h"

namespace netsum::conformance {

// Of a program that has all that the control plane needs.
::p4::v1::P4Info whole_program();

class P4RuntimeServer {
 public:
  using Entry = ::p4::v1::TableEntry;

  P4RuntimeServer();  // serves
  ~P4RuntimeServer();
  P4RuntimeServer(const P4RuntimeServer&) = delete;
  P4RuntimeServer& operator=(const P4RuntimeServer&) = delete;

  // Where it serves, as P4RuntimeOptions::server has it.
  std::string address() const;
  // All connections end, and nobody answers any more. Tables and program remain.
  void stop_serving();
  void serve();
  // Loses the program, the tables and the multicast groups.
  void forget_all();

  // As an earlier control plane has. `config`: the program in the form of the switch, if that gives it away.
  void set_program(const ::p4::v1::P4Info& info, const std::string& config = "");
  void add_entry(const std::string& table, const Entry& entry);
  void add_group(uint32_t group);
  // Every Write is refused with this, as the error of its last update.
  struct Refusal {
    int code = 0;
    std::string message;
  };
  void refuse_writes(std::optional<Refusal> refusal);
  // A second control plane is told that it is a backup, and stays connected; otherwise its connection is ended.
  void keep_backups();
  // Writes wait until this is called with false, or the server stops.
  void hold_writes(bool hold);
  // Nothing is answered or read until this is called with false, or the server stops.
  void freeze(bool freeze);
  int calls_waiting() const;  // because of one of these two
  // After so many more Writes, one is applied and never answered.
  void lose_answer_after(int writes);
  // Another control plane becomes the primary one, and the present one is told. Until this is called with false.
  void demote(bool demote);
  // A frame for the control plane, and those that it has sent.
  struct Frame {
    uint16_t port = 0;
    std::vector<uint8_t> bytes;
  };
  void send(const Frame& frame);
  std::vector<Frame> frames() const;

  bool has_primary() const;  // a control plane is connected
  int programs_loaded() const;
  std::vector<Entry> entries(const std::string& table) const;
  std::vector<uint32_t> groups() const;
  // The value of a parameter of the entry's action, by its name in the program.
  static uint64_t parameter(const Entry& entry, const std::string& action, const std::string& name);

 private:
  class Service;

  std::filesystem::path folder_;
  std::unique_ptr<Service> service_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_P4_RUNTIME_SERVER_H_
