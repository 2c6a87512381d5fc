#include "worker/rank/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "common/base/json.h"
#include "common/data/gzip_parts.h"
#include "common/io/file.h"

namespace sft::rank {
namespace {

constexpr size_t kMostNameBytes = 300;  // of a kernel's template arguments
constexpr size_t kPieceBytes = 1 << 20;
// Viewers read times as double microseconds: counted from the begin of such a span they have
// nanoseconds, and those of all ranks are alike.
constexpr int64_t kSpanNs = int64_t{30} * 24 * 3600 * 1'000'000'000;
// Viewers take process 0 for the kernel.
constexpr int kFirstProcess = 1;

const char* CategoryOf(const TraceEvent& event) {
  switch (event.kind) {
    case TraceEvent::Kind::kSpan:
      return "phase";
    case TraceEvent::Kind::kOperation:
      return "operation";
    case TraceEvent::Kind::kRuntime:
      return "cuda_runtime";
    case TraceEvent::Kind::kKernel:
      return "kernel";
    case TraceEvent::Kind::kCopy:
      return "gpu_memcpy";
  }
  return "";
}

// "12.345"
std::string Micros(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

class TraceText {
 public:
  explicit TraceText(const Recording& recording, int rank)
      : recording_(recording), process_(rank + kFirstProcess) {
    for (const TraceEvent& event : recording.events) {
      const std::pair<bool, int64_t> lane(event.on_gpu(), event.lane);
      threads_.try_emplace(lane, static_cast<int>(threads_.size()) + 1);
    }
    for (const std::string& path : recording.paths) paths_.push_back(DumpJson(Text(path)));
  }

  // Names of the process and its threads.
  std::string Head(int rank, const std::string& device) const {
    std::string text = Named("process_name", 0, fmt::format("rank {}, {}", rank, device));
    for (const auto& [lane, thread] : threads_) {
      text += Named("thread_name", thread,
                    fmt::format("{} {}", lane.first ? "stream" : "thread", lane.second));
    }
    return text;
  }

  std::string Line(const TraceEvent& event) {
    std::string line = fmt::format(
        ",\n{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{}",
        NameOf(event), CategoryOf(event), process_, threads_.at({event.on_gpu(), event.lane}),
        Micros(event.begin_ns % kSpanNs), Micros(event.end_ns - event.begin_ns));
    const bool placed = event.path != 0 && event.kind != TraceEvent::Kind::kSpan;
    return line + (placed ? fmt::format(",\"args\":{{\"in\":{}}}}}", paths_[event.path]) : "}");
  }

 private:
  static nlohmann::json Text(std::string_view text) {
    return std::string(text.substr(0, kMostNameBytes));
  }
  std::string Named(std::string_view what, int thread, const std::string& name) const {
    return fmt::format(
        ",\n{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", what,
        process_, thread, DumpJson(Text(name)));
  }
  const std::string& NameOf(const TraceEvent& event) {
    std::string& name = names_[event.name];
    if (name.empty()) name = DumpJson(Text(event.name));
    return name;
  }

  const Recording& recording_;
  const int process_;
  std::map<std::pair<bool, int64_t>, int> threads_;
  std::unordered_map<std::string, std::string> names_;
  std::vector<std::string> paths_;
};

absl::StatusOr<io::AppendFile> OpenNew(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(path));
  SFT_RETURN_IF_ERROR(file.Truncate(0));
  return file;
}

}  // namespace

absl::Status WriteTrace(const Recording& recording, const std::string& path, int64_t most_bytes,
                        channel::StepTable& table) {
  SFT_ASSIGN_OR_RETURN(io::AppendFile file, OpenNew(path));
  absl::Status written;
  data::PartPacker packer([&](std::string_view packed) {
    if (written.ok()) written = file.Append(packed);
  });
  TraceText trace(recording, table.rank);
  std::string text = trace.Head(table.rank, table.device);
  table.events = 0;
  // What the packer holds back is less than a piece.
  const int64_t room = most_bytes - static_cast<int64_t>(kPieceBytes);
  for (const TraceEvent& event : recording.events) {
    if (packer.packed_bytes() >= room || !written.ok()) break;
    text += trace.Line(event);
    ++table.events;
    if (text.size() < kPieceBytes) continue;
    packer.Add(text);
    text.clear();
  }
  packer.Add(text);
  packer.Finish();
  table.events_left_out = static_cast<int64_t>(recording.events.size()) - table.events;
  table.crc32 = packer.sum().crc32;
  table.text_bytes = packer.sum().bytes;
  table.trace_bytes = packer.packed_bytes();
  return written;
}

absl::Status WriteTraceFile(const Recording& recording, const std::string& path,
                            channel::StepTable& table) {
  const std::string part = path + ".part";
  SFT_RETURN_IF_ERROR(WriteTrace(recording, part, data::kMostTraceBytes, table));
  SFT_ASSIGN_OR_RETURN(const std::string packed, io::ReadFile(part));
  data::GzipFrame frame;
  const std::string begin = frame.Begin(data::kTraceBegin);
  frame.Add({table.crc32, table.text_bytes});
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(path, begin + packed + frame.End(data::kTraceEnd)));
  return io::RemoveAll(part);
}

}  // namespace sft::rank
