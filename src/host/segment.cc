#include "src/host/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "src/base/assert.h"
#include "src/host/meeting.h"

namespace netsum {
namespace {

constexpr size_t kPage = 4096;

Status exhausted(const std::string& what, size_t bytes) {
  return Status(ErrorCode::kResourceExhausted,
                "cannot " + what + " " + std::to_string(bytes >> 10) +
                    " KiB of memory to share among the ranks of this host: " + std::strerror(errno) +
                    "; turn it off (shared_memory, NETSUM_SHARED_MEMORY=0)");
}

}  // namespace

Segment::Segment(size_t ranks, size_t host_block_bytes)
    : ranks_(ranks),
      host_block_bytes_(host_block_bytes),
      bytes_((sizeof(Control) + kPage - 1) / kPage * kPage + kSlots * (ranks + 1) * host_block_bytes_) {}

Segment::~Segment() {
  if (control_ != nullptr) munmap(control_, bytes_);
}

// Allocates all pages and seals the size, so that an access by any rank cannot fail later. Each rank maps those that it uses.
Status Segment::make(int* file) {
  *file = memfd_create("netsum", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*file < 0) return exhausted("get", bytes_);
  if (fallocate(*file, 0, 0, static_cast<off_t>(bytes_)) != 0 ||
      fcntl(*file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return exhausted("reserve", bytes_);
  }
  return Status();
}

Status Segment::map(int file) {
  const off_t size = lseek(file, 0, SEEK_END);
  if (size != static_cast<off_t>(bytes_))
    return Status(ErrorCode::kVersionMismatch,
                  "the ranks of this host differ in the layout of the memory they share: install the same "
                  "release of netsum for all of them");
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return exhausted("map", bytes_);
  control_ = static_cast<Control*>(memory);
  blocks_ = static_cast<uint8_t*>(memory) + (bytes_ - kSlots * (ranks_ + 1) * host_block_bytes_);
  return Status();
}

Result<std::unique_ptr<Segment>> Segment::open(const SegmentOptions& options) {
  NETSUM_ASSERT(options.ranks >= 1 && options.ranks <= kMaxRanks && options.local < options.ranks);
  NETSUM_ASSERT(options.host_block_bytes > 0 && options.host_block_bytes % kPage == 0);
  std::unique_ptr<Segment> segment(new Segment(options.ranks, options.host_block_bytes));
  const MeetingOptions meeting{options.name, options.deadline, options.interrupted};
  if (options.local > 0) {
    const Result<FileDescriptor> file = receive(meeting);
    if (!file.ok()) return file.status();
    if (Status status = segment->map(file->get()); !status.ok()) return status;
    return segment;
  }
  int made = -1;
  Status status = segment->make(&made);
  const FileDescriptor file(made);
  if (status.ok()) status = segment->map(made);
  if (!status.ok()) return status;
  // The other ranks map it without constructing anything: new memory is zero, and zero is the initial state.
  new (segment->control_) Control;
  status = hand_out(meeting, made, options.ranks - 1);
  if (!status.ok()) return status;
  return segment;
}

}  // namespace netsum
