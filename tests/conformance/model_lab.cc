#include "aggregator/p4/model/model_driver.h"
#include "src/base/assert.h"
#include "tests/conformance/network_run.h"
#include "tests/conformance/p4_run.h"
#include "tests/conformance/switch_lab.h"

namespace netsum::conformance {
namespace {

constexpr uint32_t kOwnIp = 0x0A0000FE;

class ModelLab final : public SwitchLab {
 public:
  Address own_address() const override { return *Address::parse("10.0.0.254:0"); }

  Result<std::unique_ptr<p4::SwitchDriver>> connect() override {
    auto driver = std::make_unique<p4::ModelDriver>(kOwnIp);
    driver_ = driver.get();
    for (Peer peer = 0; peer < kNetworkPeers; ++peer)
      driver_->add_host(endpoint_of(peer).ip, endpoint_of(peer).port);
    return std::unique_ptr<p4::SwitchDriver>(std::move(driver));
  }
  void send(Peer from, const Bytes& datagram) override {
    for (const p4::Datagram& sent : driver_->feed({endpoint_of(from), datagram})) {
      const Peer to = static_cast<Peer>(sent.peer.ip - kFirstIp);
      NETSUM_ASSERT(sent.peer == endpoint_of(to));
      replies_.push_back({to, sent.bytes});
    }
  }
  std::vector<Reply> take_replies(size_t) override { return std::exchange(replies_, {}); }
  p4::MemberEntry place_of(Peer peer) override {
    const p4::Endpoint at = endpoint_of(peer);
    return {.port = at.port, .mac = uint64_t{0x0200} << 32 | at.ip, .ip = at.ip, .udp_port = at.udp_port};
  }
  void restart() override { driver_->restart(); }
  std::unique_ptr<DataplaneUnderTest> run(Dataplane* dataplane) override;

  p4::ModelDriver& driver() { return *driver_; }

 private:
  p4::ModelDriver* driver_ = nullptr;
  std::vector<Reply> replies_;
};

class ModelRun final : public DataplaneUnderTest {
 public:
  ModelRun(ModelLab* lab, Dataplane* dataplane) : lab_(lab), dataplane_(dataplane), before_(all_drops()) {}
  ~ModelRun() override {
    for (const DataplaneJob& job : installed_) dataplane_->remove(job.job, job.epoch);
  }

  void install(const VectorJob& job) override {
    installed_.push_back(dataplane_job(job, [](Peer peer) {
      const p4::Endpoint at = endpoint_of(peer);
      return *Address::parse("10.0.1." + std::to_string(at.ip & 0xFF) + ":" + std::to_string(at.udp_port));
    }));
    const Status status = dataplane_->install(installed_.back());
    NETSUM_ASSERT(status.ok());
    lab_->driver().answer_requests();
  }
  bool start_at(const VectorStart& start) override {
    lab_->driver().start_slot_at(start.job, start.slot, start.round);
    return true;
  }
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override {
    lab_->send(from, datagram);
    return lab_->take_replies(0);
  }
  std::map<std::string, uint64_t> drops() override {
    std::map<std::string, uint64_t> drops = all_drops();
    for (auto& [name, count] : drops) count -= before_[name];
    return drops;
  }

 private:
  std::map<std::string, uint64_t> all_drops() const {
    std::map<std::string, uint64_t> drops;
    for (const AggregatorCounter& counter : dataplane_->counters())
      if (counter.name.starts_with("drop_")) drops[counter.name.substr(5)] = counter.value;
    return drops;
  }

  ModelLab* const lab_;
  Dataplane* const dataplane_;
  std::vector<DataplaneJob> installed_;
  std::map<std::string, uint64_t> before_;
};

std::unique_ptr<DataplaneUnderTest> ModelLab::run(Dataplane* dataplane) {
  return std::make_unique<ModelRun>(this, dataplane);
}

}  // namespace

std::unique_ptr<SwitchLab> make_model_lab() {
  return std::make_unique<ModelLab>();
}

}  // namespace netsum::conformance
