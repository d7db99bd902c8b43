// A control service for tests that passes calls on to another one. What derives from it changes some.
#ifndef NETSUM_AGGREGATOR_CONTROL_PASSING_SERVICE_TESTING_H_
#define NETSUM_AGGREGATOR_CONTROL_PASSING_SERVICE_TESTING_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "src/control/control.grpc.pb.h"

namespace netsum {

class PassingService : public control::Aggregator::Service {
 public:
  explicit PassingService(const std::string& behind)
      : stub_(control::Aggregator::NewStub(grpc::CreateChannel(behind, grpc::InsecureChannelCredentials()))) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~PassingService() override { end(); }
  const std::string& address() const { return address_; }

  grpc::Status Join(grpc::ServerContext* call, const control::JoinRequest* request,
                    grpc::ServerWriter<control::Event>* writer) override {
    const auto context = grpc::ClientContext::FromServerContext(*call);
    const auto events = stub_->Join(context.get(), *request);
    control::Event event;
    while (events->Read(&event) && writer->Write(event)) {
    }
    return events->Finish();
  }
  grpc::Status Leave(grpc::ServerContext* /*call*/, const control::MemberRequest* request,
                     control::LeaveReply* reply) override {
    grpc::ClientContext context;
    return stub_->Leave(&context, *request, reply);
  }
  grpc::Status Fail(grpc::ServerContext* /*call*/, const control::FailRequest* request,
                    control::Empty* reply) override {
    grpc::ClientContext context;
    return stub_->Fail(&context, *request, reply);
  }

 protected:
  // Before what derives from this ends: its calls use it.
  void end() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  const std::unique_ptr<control::Aggregator::Stub> stub_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_PASSING_SERVICE_TESTING_H_
