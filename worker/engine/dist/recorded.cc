#include "worker/engine/dist/recorded.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <utility>

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
  RecordedWork(WorkPtr inner, channel::FlightRecorder& flight, Toll toll, uint64_t number,
               bool blocks)
      : inner_(std::move(inner)), flight_(flight), toll_(toll), number_(number), blocks_(blocks) {}
  // The wait of a work that nobody waited for is noted too: it may be where the rank hangs.
  ~RecordedWork() override {
    if (inner_ == nullptr) return;
    flight_.Wait(number_);
    inner_.reset();
    flight_.EndWait(number_, blocks_);
  }

  void Wait() override {
    flight_.Wait(number_);
    const WorkPtr inner = std::move(inner_);
    toll_.Begin();
    inner->Wait();
    toll_.End();
    flight_.EndWait(number_, blocks_);
  }

 private:
  WorkPtr inner_;
  channel::FlightRecorder& flight_;
  Toll toll_;
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
    const uint64_t number = Start(Collective::kAllReduce, tensor, 2 * Others());
    return Recorded(number, inner_->AllReduceSumAsync(std::move(tensor)));
  }
  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    const uint64_t number = Start(Collective::kAllGather, out, Others());
    return Recorded(number,
                    inner_->AllGatherAsync(std::move(out), std::move(part), std::move(counts)));
  }
  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    const uint64_t number = Start(Collective::kReduceScatter, in, Others());
    return Recorded(
        number, inner_->ReduceScatterSumAsync(std::move(part), std::move(in), std::move(counts)));
  }
  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    const uint64_t number = Start(Collective::kAllToAll, in, Others());
    return Recorded(number, inner_->AllToAllAsync(std::move(out), std::move(in)));
  }
  WorkPtr BroadcastAsync(at::Tensor tensor, int root) override {
    const uint64_t number = Start(Collective::kBroadcast, tensor, Others());
    return Recorded(number, inner_->BroadcastAsync(std::move(tensor), root));
  }
  // Both ends of a message are one operation of the group.
  WorkPtr SendAsync(at::Tensor tensor, int to) override {
    const uint64_t number = Start(Collective::kMessage, tensor, 1);
    return Recorded(number, inner_->SendAsync(std::move(tensor), to));
  }
  WorkPtr ReceiveAsync(at::Tensor tensor, int from) override {
    const uint64_t number = Start(Collective::kMessage, tensor, 0);
    return Recorded(number, inner_->ReceiveAsync(std::move(tensor), from));
  }
  void Barrier() override {
    const uint64_t number = flight_.Start(group_, Collective::kBarrier, 0);
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
  uint64_t Start(Collective kind, const at::Tensor& whole, double sent) {
    if (toll_.meter != nullptr) {
      toll_.meter->AddBytes(toll_.axis, sent * static_cast<double>(whole.nbytes()));
    }
    return flight_.Start(group_, kind, static_cast<int64_t>(whole.nbytes()));
  }
  WorkPtr Recorded(uint64_t number, WorkPtr work) {
    return std::make_unique<RecordedWork>(std::move(work), flight_, toll_, number, blocks_);
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
