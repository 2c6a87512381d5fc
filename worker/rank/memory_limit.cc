#include "worker/rank/memory_limit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/io/host_memory.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

constexpr int64_t kFree = int64_t{4} << 30;
constexpr int64_t kForEachByte = 256;
// Measured: 3 for text whose tokens have 4 bytes, 9 where they have 1.3, 20 where a row has 15
// bytes.
constexpr int64_t kHonestForEachByte = 24;
// Less would not do for the program itself.
constexpr int64_t kLeast = int64_t{1} << 30;
// What a node that is not short of memory still gives.
constexpr size_t kProbeBytes = 64 << 20;
constexpr rlim_t kOtherThreads = 8;

int64_t GbUp(int64_t bytes) { return (bytes + 999'999'999) / 1'000'000'000; }

int64_t SizeOf(const std::string& path) {
  // A file that is missing is told by whoever opens it.
  return path.empty() ? 0 : io::FileSize(path).value_or(0);
}

// The hard limit stays as it was, so that RefusedMemory can lift this one.
void SetSoftLimit(rlim_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  if (setrlimit(RLIMIT_DATA, &limit) != 0) {
    throw engine::InfrastructureError(
        std::string(Message(ErrnoStatus("cannot limit the memory of prepare", errno))));
  }
}

// Of one thread, as glibc reserves it.
rlim_t StackBytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return 0;
  (void)pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

bool NodeGivesMemory() {
  void* const probe =
      mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  munmap(probe, kProbeBytes);
  return true;
}

}  // namespace

MemoryLimit ChooseMemoryLimit(int64_t launch_bytes, int64_t data_bytes, int64_t total,
                              int64_t available) {
  MemoryLimit limit;
  // The data cannot be so large that this overflows: they would not fit on a disk.
  limit.honest_bytes = kFree + kHonestForEachByte * data_bytes;
  limit.bytes = launch_bytes > 0 ? launch_bytes
                                 : std::min(kFree + kForEachByte * data_bytes,
                                            std::max(total / 2, limit.honest_bytes));
  const int64_t left = std::max(available / 10 * 9, kLeast);
  limit.of_node = left < limit.bytes;
  limit.bytes = std::min(left, limit.bytes);
  return limit;
}

MemoryLimit MemoryLimitOf(const channel::RankLaunch& launch) {
  const auto total = io::TotalMemory();
  const auto available = io::AvailableMemory();
  if (!total.ok() || !available.ok()) {
    throw engine::InfrastructureError(
        std::string(Message(total.ok() ? available.status() : total.status())));
  }
  int64_t data = SizeOf(launch.train_file) + SizeOf(launch.val_file);
  for (const channel::RowFile& file : launch.more_train_files) data += SizeOf(file.path);
  return ChooseMemoryLimit(launch.prepare_memory_bytes, data, *total, *available);
}

void ApplyMemoryLimit(const MemoryLimit& limit) {
  // As many threads as the machine runs at once work on rows; a few others watch them.
  const rlim_t threads = std::thread::hardware_concurrency() + kOtherThreads;
  SetSoftLimit(static_cast<rlim_t>(limit.bytes) + threads * StackBytes());
  // Where /proc cannot be written, the kernel's own choice stays.
  const io::UniqueFd fd(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (fd.valid()) (void)io::WriteAll(fd.get(), "500", "oom_score_adj");
}

void ThrowRefusedMemory(const MemoryLimit& limit, const std::string& where) {
  SetSoftLimit(RLIM_INFINITY);
  const std::string prefix = where.empty() ? "" : where + ": ";
  if (limit.of_node || !NodeGivesMemory()) {
    throw engine::InfrastructureError(
        fmt::format("{}the node ran short of memory while the data were prepared, for which it had "
                    "{} left; data of this size take up to {}",
                    prefix, BytesText(limit.bytes), BytesText(limit.honest_bytes)),
        "host_oom", "see what takes the node's memory; the job may run elsewhere");
  }
  const bool raise = limit.bytes < limit.honest_bytes;
  throw engine::UserError(
      fmt::format("{}preparing the data needs more than the {} of memory that it may take "
                  "on this node; data of this size take up to {}",
                  prefix, BytesText(limit.bytes), BytesText(limit.honest_bytes)),
      "prepare_out_of_memory",
      raise
          ? fmt::format(
                "let the operator of the node start its worker with --prepare-memory-gb {}, "
                "or divide the data",
                GbUp(limit.honest_bytes))
          : fmt::format("look for rows that are far too long, or a chat template or tokenizer that "
                        "makes too much of a row; where the data are as they should be, let the "
                        "operator of the node start its worker with --prepare-memory-gb above {}",
                        GbUp(limit.bytes)));
}

}  // namespace sft::rank
