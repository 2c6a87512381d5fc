#include "worker/engine/dist/recorded.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <utility>

#include "worker/engine/base/phase_span.h"

namespace sft::engine {
namespace {

using channel::Collective;

constexpr char kWorld[] = "world";

// Where the cost of an axis goes; `meter` may be null.
struct Toll {
  TrafficMeter* meter = nullptr;
  size_t axis = 0;

  void Begin() const {
    if (meter != nullptr) meter->BeginWait();
  }
  void End() const {
    if (meter != nullptr) meter->EndWait(axis);
  }
};

class RecordedWork : public Work {
 public:
  RecordedWork(WorkPtr inner, channel::FlightRecorder& flight, Toll toll, Collective kind,
               uint64_t number, bool blocks)
      : inner_(std::move(inner)),
        flight_(flight),
        toll_(toll),
        kind_(kind),
        number_(number),
        blocks_(blocks) {}
  // The wait of a work that nobody waited for is noted too: it may be where the rank hangs.
  ~RecordedWork() override {
    if (inner_ == nullptr) return;
    const PhaseSpan span = WaitSpan();
    flight_.Wait(number_);
    inner_.reset();
    flight_.EndWait(number_, blocks_);
  }

  void Wait() override {
    const PhaseSpan span = WaitSpan();
    flight_.Wait(number_);
    const WorkPtr inner = std::move(inner_);
    toll_.Begin();
    inner->Wait();
    toll_.End();
    flight_.EndWait(number_, blocks_);
  }

 private:
  PhaseSpan WaitSpan() const {
    return PhaseSpan(kWaitSpan, static_cast<int64_t>(number_), ToString(kind_));
  }

  WorkPtr inner_;
  channel::FlightRecorder& flight_;
  Toll toll_;
  Collective kind_;
  uint64_t number_;
  bool blocks_;  // Wait returns when the collective is done
};

class RecordedCommunicator : public Communicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> inner, channel::FlightRecorder& flight,
                       TrafficMeter* meter, const std::string& group, std::vector<int> members)
      : inner_(std::move(inner)),
        flight_(flight),
        toll_{.meter = meter},
        group_(flight.Group(group)),
        members_(std::move(members)),
        blocks_(inner_->device().is_cpu()) {
    NameAxis(group == kWorld ? kWorld : "group");
  }

  void NameAxis(std::string_view axis) override {
    if (toll_.meter != nullptr) toll_.axis = toll_.meter->Axis(axis);
  }

  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  at::Device device() const override { return inner_->device(); }
  std::string_view backend() const override { return inner_->backend(); }

  WorkPtr AllReduceSumAsync(at::Tensor tensor) override {
    return Started(Collective::kAllReduce, tensor, 2 * Others(),
                   [&] { return inner_->AllReduceSumAsync(tensor); });
  }
  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    return Started(Collective::kAllGather, out, Others(),
                   [&] { return inner_->AllGatherAsync(out, part, std::move(counts)); });
  }
  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    return Started(Collective::kReduceScatter, in, Others(),
                   [&] { return inner_->ReduceScatterSumAsync(part, in, std::move(counts)); });
  }
  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    return Started(Collective::kAllToAll, in, Others(),
                   [&] { return inner_->AllToAllAsync(out, in); });
  }
  WorkPtr BroadcastAsync(at::Tensor tensor, int root) override {
    return Started(Collective::kBroadcast, tensor, Others(),
                   [&] { return inner_->BroadcastAsync(tensor, root); });
  }
  // Both ends of a message are one operation of the group.
  WorkPtr SendAsync(at::Tensor tensor, int to) override {
    return Started(Collective::kMessage, tensor, 1, [&] { return inner_->SendAsync(tensor, to); });
  }
  WorkPtr ReceiveAsync(at::Tensor tensor, int from) override {
    return Started(Collective::kMessage, tensor, 0,
                   [&] { return inner_->ReceiveAsync(tensor, from); });
  }
  void Barrier() override {
    const uint64_t number = flight_.Start(group_, Collective::kBarrier, 0);
    const PhaseSpan span(kWaitSpan, static_cast<int64_t>(number), ToString(Collective::kBarrier));
    flight_.Wait(number);
    toll_.Begin();
    inner_->Barrier();
    toll_.End();
    flight_.EndWait(number, /*finished=*/true);
  }

  std::unique_ptr<Communicator> Connect(const std::string& name,
                                        const std::vector<int>& members) override {
    std::vector<int> global;
    for (const int member : members) global.push_back(members_[member]);
    std::string group = fmt::format("{}", fmt::join(global, ","));
    // Each group counts its own operations.
    if (const int made = ++named_[group]; made > 1) group += fmt::format("#{}", made);
    return std::make_unique<RecordedCommunicator>(inner_->Connect(name, members), flight_,
                                                  toll_.meter, group, global);
  }

  // The ranks of the whole gang, by their numbers.
  static std::vector<int> Everyone(int world) {
    std::vector<int> members;
    for (int rank = 0; rank < world; ++rank) members.push_back(rank);
    return members;
  }

 private:
  // Part of a whole that a rank of a ring sends on in a gather, and of its own in an all-to-all.
  double Others() const { return 1 - 1.0 / inner_->world(); }
  // `begin` starts the collective, over whose tensor `whole` this rank sends `sent` times its
  // bytes.
  template <typename Begin>
  WorkPtr Started(Collective kind, const at::Tensor& whole, double sent, const Begin& begin) {
    if (toll_.meter != nullptr) {
      toll_.meter->AddBytes(toll_.axis, sent * static_cast<double>(whole.nbytes()));
    }
    const uint64_t number = flight_.Start(group_, kind, static_cast<int64_t>(whole.nbytes()));
    const PhaseSpan span(kStartSpan, static_cast<int64_t>(number), ToString(kind));
    return std::make_unique<RecordedWork>(begin(), flight_, toll_, kind, number, blocks_);
  }

  const std::unique_ptr<Communicator> inner_;
  channel::FlightRecorder& flight_;
  Toll toll_;
  const int group_;
  const std::vector<int> members_;    // their numbers in the gang
  std::map<std::string, int> named_;  // groups made of a list of ranks
  const bool blocks_;
};

}  // namespace

std::unique_ptr<Communicator> MakeRecordedCommunicator(std::unique_ptr<Communicator> inner,
                                                       channel::FlightRecorder& flight,
                                                       TrafficMeter* meter) {
  std::vector<int> everyone = RecordedCommunicator::Everyone(inner->world());
  return std::make_unique<RecordedCommunicator>(std::move(inner), flight, meter, kWorld,
                                                std::move(everyone));
}

}  // namespace sft::engine
