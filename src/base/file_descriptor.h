// A descriptor that is closed with its owner, and in forked children (src/base/forked_children.h).
#ifndef NETSUM_SRC_BASE_FILE_DESCRIPTOR_H_
#define NETSUM_SRC_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

#include "src/base/forked_children.h"

namespace netsum {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) { forked_children::drop(fd); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ < 0) return;
    forked_children::keep(fd_);
    close(fd_);
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_FILE_DESCRIPTOR_H_
