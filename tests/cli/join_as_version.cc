// Asks an aggregator to join under another protocol version and prints its answer:
//   join_as_version HOST:PORT VERSION
// Exit status 0 if it was refused, 1 if not.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "src/control/control.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  const auto aggregator = netsum::control::Aggregator::NewStub(channel);
  netsum::control::JoinRequest request;
  request.mutable_job()->set_protocol_version(static_cast<uint32_t>(std::atoi(argv[2])));
  request.mutable_job()->set_name("other-version");
  request.mutable_job()->set_world_size(1);
  request.mutable_job()->set_mtu(1500);
  request.mutable_job()->set_slots(16);
  request.set_deadline_ms(10'000);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto stream = aggregator->Join(&context, request);
  netsum::control::Event event;
  bool failed = false;
  while (!failed && stream->Read(&event)) {
    failed = event.has_failed();
    if (failed) std::printf("%s\n", event.failed().message().c_str());
    if (event.has_ready()) {
      std::printf("joined\n");
      return 1;
    }
  }
  // A stream that has told of its failure need not end by itself.
  if (failed) context.TryCancel();
  const grpc::Status status = stream->Finish();
  if (!failed) std::printf("%s\n", status.error_message().c_str());
  return failed || !status.ok() ? 0 : 1;
}
