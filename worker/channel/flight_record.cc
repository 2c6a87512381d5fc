#include "worker/channel/flight_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/io/file.h"

namespace sft::channel {
namespace {

constexpr uint64_t kMagic = 0x3174'6867'696c'6674;  // "tflight1"
constexpr uint64_t kVersion = 2;
// How often a reader that meets the writer in the middle of a change reads again. A rank killed
// there leaves its last change half made, and the copy is then taken as it is.
constexpr int kMaxLooks = 16;
constexpr auto kRelaxed = std::memory_order_relaxed;

MonoTime FromNs(uint64_t ns) { return MonoTime(Nanos(static_cast<int64_t>(ns))); }

std::string GroupName(const FlightPage<uint64_t>& page, uint64_t index) {
  if (index >= kFlightGroups) return "?";
  const char* name = page.groups[index];
  return std::string(name, strnlen(name, kFlightNameBytes));
}

FlightRecord Decode(const FlightPage<uint64_t>& page) {
  FlightRecord record;
  record.rank = static_cast<int>(page.rank);
  record.world = static_cast<int>(page.world);
  record.pid = static_cast<int64_t>(page.pid);
  record.phase = static_cast<FlightPhase>(page.phase);
  record.begun = FromNs(page.begun_ns);
  record.changed = FromNs(page.changed_ns);
  record.step = static_cast<int64_t>(page.step);
  record.steps_done = static_cast<int64_t>(page.steps_done);
  record.total_steps = static_cast<int64_t>(page.total_steps);
  record.waiting = page.waiting;
  const uint64_t ops = std::min<uint64_t>(page.ops_started, kFlightOps);
  for (uint64_t number = page.ops_started - ops + 1; number <= page.ops_started; ++number) {
    const auto& op = page.ops[(number - 1) % kFlightOps];
    record.ops.push_back({number, GroupName(page, op.group), op.sequence,
                          static_cast<Collective>(op.kind), static_cast<int64_t>(op.bytes),
                          FromNs(op.started_ns), op.finished_ns != 0});
  }
  const uint64_t steps = std::min<uint64_t>(page.steps_measured, kFlightSteps);
  for (uint64_t i = page.steps_measured - steps; i < page.steps_measured; ++i) {
    const auto& step = page.steps[i % kFlightSteps];
    record.steps.push_back(
        {static_cast<int64_t>(step.step), Nanos(static_cast<int64_t>(step.own_ns))});
  }
  return record;
}

}  // namespace

std::string_view ToString(FlightPhase phase) {
  switch (phase) {
    case FlightPhase::kStarting:
      return "starting";
    case FlightPhase::kMeeting:
      return "waiting for the other ranks at the rendezvous";
    case FlightPhase::kLoading:
      return "loading";
    case FlightPhase::kTraining:
      return "training";
    case FlightPhase::kValidating:
      return "validating";
    case FlightPhase::kCheckpointing:
      return "writing a checkpoint";
    case FlightPhase::kDelivering:
      return "delivering the result";
    case FlightPhase::kEnding:
      return "ending";
  }
  return "in an unknown phase";
}

std::string_view ToString(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kMessage:
      return "message";
    case Collective::kAllToAll:
      return "all-to-all";
  }
  return "unknown collective";
}

absl::StatusOr<FlightRecorder> FlightRecorder::Create(const std::string& path, int rank, int world,
                                                      Clock& clock) {
  const io::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));
  if (!fd.valid()) return ErrnoStatus(fmt::format("cannot create {}", path), errno);
  if (const int error = ::posix_fallocate(fd.get(), 0, sizeof(Page)); error != 0) {
    ::unlink(path.c_str());
    return ErrnoStatus(fmt::format("cannot write {}", path), error);
  }
  void* memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus(fmt::format("cannot map {}", path), errno);
  // A file of zeros is a page of zeros.
  FlightRecorder recorder(static_cast<Page*>(memory), clock);
  Page& page = *recorder.page_;
  page.version.store(kVersion, kRelaxed);
  page.rank.store(static_cast<uint64_t>(rank), kRelaxed);
  page.world.store(static_cast<uint64_t>(world), kRelaxed);
  page.pid.store(static_cast<uint64_t>(getpid()), kRelaxed);
  page.begun_ns.store(recorder.Open(), kRelaxed);
  recorder.Close();
  page.magic.store(kMagic, std::memory_order_release);
  return recorder;
}

FlightRecorder::FlightRecorder(FlightRecorder&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)),
      clock_(other.clock_),
      sequences_(other.sequences_),
      step_begun_ns_(other.step_begun_ns_),
      wait_begun_ns_(other.wait_begun_ns_),
      waited_ns_(other.waited_ns_) {}

FlightRecorder::~FlightRecorder() {
  if (page_ != nullptr) ::munmap(page_, sizeof(Page));
}

uint64_t FlightRecorder::Open() {
  const auto now = static_cast<uint64_t>(clock_->Mono().time_since_epoch().count());
  page_->changes.store(page_->changes.load(kRelaxed) + 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  page_->changed_ns.store(now, kRelaxed);
  return now;
}

void FlightRecorder::Close() {
  page_->changes.store(page_->changes.load(kRelaxed) + 1, std::memory_order_release);
}

void FlightRecorder::SetPhase(FlightPhase phase) {
  Open();
  page_->phase.store(static_cast<uint64_t>(phase), kRelaxed);
  Close();
}

void FlightRecorder::SetTotalSteps(int64_t total) {
  Open();
  page_->total_steps.store(static_cast<uint64_t>(total), kRelaxed);
  Close();
}

void FlightRecorder::BeginStep(int64_t step) {
  step_begun_ns_ = Open();
  waited_ns_ = 0;
  page_->phase.store(static_cast<uint64_t>(FlightPhase::kTraining), kRelaxed);
  page_->step.store(static_cast<uint64_t>(step), kRelaxed);
  Close();
}

void FlightRecorder::EndOwnWork(bool all_finished) {
  const uint64_t now = Open();
  const uint64_t started = all_finished ? page_->ops_started.load(kRelaxed) : 0;
  for (uint64_t number = started; number > 0 && number + kFlightOps > started; --number) {
    auto& op = page_->ops[(number - 1) % kFlightOps];
    if (op.finished_ns.load(kRelaxed) == 0) op.finished_ns.store(now, kRelaxed);
  }
  const uint64_t measured = page_->steps_measured.load(kRelaxed);
  auto& entry = page_->steps[measured % kFlightSteps];
  entry.step.store(page_->step.load(kRelaxed), kRelaxed);
  const uint64_t elapsed = now - step_begun_ns_;
  entry.own_ns.store(elapsed - std::min(elapsed, waited_ns_), kRelaxed);
  page_->steps_measured.store(measured + 1, kRelaxed);
  Close();
}

void FlightRecorder::EndStep() {
  Open();
  page_->steps_done.store(page_->step.load(kRelaxed), kRelaxed);
  Close();
}

int FlightRecorder::Group(std::string_view name) {
  const std::string_view kept = name.substr(0, kFlightNameBytes - 1);
  const uint64_t count = page_->group_count.load(kRelaxed);
  for (uint64_t i = 0; i < count; ++i) {
    if (kept == page_->groups[i]) return static_cast<int>(i);
  }
  if (count == kFlightGroups) return kFlightGroups - 1;
  Open();
  std::memcpy(page_->groups[count], kept.data(), kept.size());
  page_->group_count.store(count + 1, kRelaxed);
  Close();
  return static_cast<int>(count);
}

uint64_t FlightRecorder::Start(int group, Collective kind, int64_t bytes) {
  const uint64_t now = Open();
  const uint64_t number = page_->ops_started.load(kRelaxed) + 1;
  auto& op = page_->ops[(number - 1) % kFlightOps];
  op.group.store(static_cast<uint64_t>(group), kRelaxed);
  op.sequence.store(++sequences_[static_cast<size_t>(group)], kRelaxed);
  op.kind.store(static_cast<uint64_t>(kind), kRelaxed);
  op.bytes.store(static_cast<uint64_t>(bytes), kRelaxed);
  op.started_ns.store(now, kRelaxed);
  op.finished_ns.store(0, kRelaxed);
  page_->ops_started.store(number, kRelaxed);
  Close();
  return number;
}

void FlightRecorder::Wait(uint64_t number) {
  wait_begun_ns_ = Open();
  page_->waiting.store(number, kRelaxed);
  Close();
}

void FlightRecorder::EndWait(uint64_t number, bool finished) {
  const uint64_t now = Open();
  waited_ns_ += now - wait_begun_ns_;
  page_->waiting.store(0, kRelaxed);
  if (finished && number + kFlightOps > page_->ops_started.load(kRelaxed)) {
    page_->ops[(number - 1) % kFlightOps].finished_ns.store(now, kRelaxed);
  }
  Close();
}

std::string FlightOp::Describe() const {
  return fmt::format("{} #{} ({} bytes, group {})", ToString(kind), sequence, bytes, group);
}

const FlightOp* FlightRecord::LastOp() const {
  for (const FlightOp& op : ops) {
    if (waiting != 0 && op.number == waiting) return &op;
  }
  return ops.empty() ? nullptr : &ops.back();
}

std::string FlightRecord::Describe() const {
  std::string text;
  if (step > 0 && phase == FlightPhase::kTraining) {
    text = fmt::format("step {} of {}", step, total_steps);
  } else {
    text = ToString(phase);
    if (step > 0) text += fmt::format(" after step {}", step);
  }
  const FlightOp* op = LastOp();
  if (op == nullptr) return text + ", no collective yet";
  if (waiting != 0) return fmt::format("{}, waits in {}", text, op->Describe());
  return fmt::format("{}, last {} {}", text, op->finished ? "finished" : "started", op->Describe());
}

absl::StatusOr<FlightRecord> ReadFlightRecord(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  FlightPage<uint64_t> page{};
  uint64_t before = 1;
  for (int look = 0; look < kMaxLooks; ++look) {
    SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd.get(), 0, reinterpret_cast<char*>(&page),
                                                      sizeof(page), path));
    if (got != sizeof(page) || page.magic != kMagic || page.version != kVersion) {
      return InvalidArgument(path + " is no flight record of this version");
    }
    // The copy is not atomic: it is consistent when the count is even and unchanged afterwards.
    uint64_t after = 0;
    constexpr int64_t kChangesAt = offsetof(FlightPage<uint64_t>, changes);
    SFT_ASSIGN_OR_RETURN(
        const size_t again,
        io::ReadAt(fd.get(), kChangesAt, reinterpret_cast<char*>(&after), sizeof(after), path));
    before = page.changes;
    if (again == sizeof(after) && before == after && before % 2 == 0) break;
  }
  return Decode(page);
}

std::string FlightPath(std::string_view attempt_dir, int rank) {
  return fmt::format("{}/rank-{}.flight", attempt_dir, rank);
}

}  // namespace sft::channel
