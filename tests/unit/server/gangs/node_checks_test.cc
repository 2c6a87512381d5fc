#include "server/gangs/node_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace sft::server {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max(), kOffset62 = int64_t{1} << 62;
const std::string kHash(64, 'a');

// Ranks 2 and 3 of 4, on node b.
Dispatched PartOf() {
  return {.attempt_uid = "attempt-1",
          .job_id = "job-1",
          .node = "b",
          .first_rank = 2,
          .ranks = 2,
          .world_size = 4,
          .nodes = {"a", "b"}};
}

// A change to a valid message, and the field that the refusal must name; empty: it is still valid.
template <typename Message>
struct Case {
  std::function<void(Message&)> change;
  std::string named;
};

template <typename Message, typename Check>
void Expect(const Message& good, const std::vector<Case<Message>>& cases, const Check& check) {
  EXPECT_TRUE(check(good).ok()) << check(good);
  for (size_t i = 0; i < cases.size(); ++i) {
    Message message = good;
    cases[i].change(message);
    const absl::Status status = check(message);
    if (cases[i].named.empty()) {
      EXPECT_TRUE(status.ok()) << i << ": " << status;
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << i << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(cases[i].named)) << i;
    EXPECT_LT(status.message().size(), 400u) << i;
  }
}

TEST(NodeChecksTest, ALogIsOfARankThatTheNodeWasGivenAndAnOffsetThatALogCanHave) {
  using Log = v1::AppendLogRequest;
  Log good;
  good.set_rank(2);
  Expect<Log>(good,
              {{[](Log& m) { m.set_rank(3); }, ""},
               {[](Log& m) { m.set_rank(-1); }, ""},
               {[](Log& m) { m.set_offset(100), m.set_skipped_from(50); }, ""},
               {[](Log& m) { m.set_rank(1); }, "rank: attempt attempt-1 has the ranks 2 to 3"},
               {[](Log& m) { m.set_rank(4); }, "rank"},
               {[](Log& m) { m.set_rank(-2); }, "rank"},
               {[](Log& m) { m.set_rank(-7); }, "rank"},
               {[](Log& m) { m.set_offset(-1); }, "offset"},
               {[](Log& m) { m.set_offset(kOffset62); }, "offset"},
               {[](Log& m) { m.set_offset(10), m.set_skipped_from(-1); }, "skipped_from"},
               {[](Log& m) { m.set_offset(10), m.set_skipped_from(11); }, "skipped_from"}},
              [](const Log& m) { return CheckLog(m, PartOf()); });
}

TEST(NodeChecksTest, EventsStandForAPieceOfAFileOfThatNode) {
  using Events = v1::AppendEventsRequest;
  Events good;
  good.set_rank(3);
  good.set_begin_offset(100);
  good.set_end_offset(200);
  Expect<Events>(
      good,
      {{[](Events& m) { m.set_rank(-2); }, ""},
       {[](Events& m) { m.set_end_offset(100); }, ""},
       {[](Events& m) { m.set_rank(0); }, "rank"},
       {[](Events& m) { m.set_rank(-3); }, "rank"},
       {[](Events& m) { m.set_begin_offset(-5); }, "begin_offset"},
       {[](Events& m) { m.set_end_offset(99); }, "end_offset"},
       {[](Events& m) { m.set_end_offset(kOffset62); }, "end_offset"},
       {[](Events& m) { m.set_begin_offset(kHuge), m.set_end_offset(kHuge); }, "begin_offset"}},
      [](const Events& m) { return CheckEvents(m, PartOf()); });
}

TEST(NodeChecksTest, AnEventHasNumbersThatAStepCanHave) {
  using Event = v1::RankEvent;
  Event metric;
  metric.mutable_metric()->set_step(7);
  metric.mutable_metric()->set_loss(std::numeric_limits<double>::quiet_NaN());
  const auto set = [](auto change) { return [=](Event& m) { change(*m.mutable_metric()); }; };
  using M = v1::Metric;
  Expect<Event>(
      metric,
      {{set([](M& m) { m.set_step(-1); }), "step"},
       {set([](M& m) { m.set_step(kHuge); }), "step"},
       {set([](M& m) { m.set_total_steps(-1); }), "total_steps"},
       {set([](M& m) { m.set_tokens(kHuge); }), "tokens"},
       {set([](M& m) { m.set_gpu_memory_bytes(-1); }), "gpu_memory_bytes"},
       {set([](M& m) { m.mutable_time()->set_seconds(kHuge); }), "time.seconds"},
       {set([](M& m) { m.mutable_time()->set_nanos(-1); }), "time.nanos"},
       {set([](M& m) { m.set_of_limit(1e300); }), "of_limit"},
       {set([](M& m) { m.set_epoch(-1e200); }), "epoch"},
       {set([](M& m) { m.add_traffic()->set_axis("shard"); }), ""},
       {set([](M& m) { m.add_traffic()->set_axis("a\n"); }), "traffic.axis"},
       {set([](M& m) { m.add_traffic()->set_axis(std::string(33, 'x')); }), "traffic.axis"},
       {set([](M& m) { m.add_traffic()->set_exposed_share(1e300); }), "traffic.exposed_share"},
       {set([](M& m) { m.add_traffic()->set_gigabytes_per_second(-1e300); }),
        "traffic.gigabytes_per_second"},
       {set([](M& m) {
          for (int i = 0; i < 5; ++i) m.add_traffic();
        }),
        "traffic"},
       {set([](M& m) { m.add_values()->set_name("loss"); }), "values.name"},
       {set([](M& m) { m.add_values()->set_name("val.loss"); }), "values.name"},
       {set([](M& m) { m.add_values()->set_name("val.a b"); }), "values.name"},
       {set([](M& m) { m.add_values()->set_name("val." + std::string(77, 'x')); }), "values.name"},
       {set([](M& m) {
          m.add_values()->set_name("val.f1");
          m.mutable_values(0)->set_value(1e300);
        }),
        "values.value"},
       {set([](M& m) {
          for (int i = 0; i < 65; ++i) m.add_values()->set_name("val.f1");
        }),
        "values"}},
      CheckEvent);
  Event note;
  note.set_note("agreed");
  Expect<Event>(note,
                {{[](Event& m) { m.set_type("consistency"); }, ""},
                 {[](Event& m) { m.set_type("a\x1b[31m"); }, "type"},
                 {[](Event& m) { m.set_type("two words"); }, "type"},
                 {[](Event& m) { m.set_type(std::string(100, 'x')); }, "type"}},
                CheckEvent);
  EXPECT_TRUE(CheckEvent(Event()).ok()) << "of a worker that knows more";
}

TEST(NodeChecksTest, AnArtifactHasPlainNamesOnceAndLiesWhereItsJobMayWrite) {
  using Artifact = v1::CommitArtifactRequest;
  Artifact good;
  good.set_kind("adapter");
  for (const char* path : {"adapter_config.json", "sub/b.safetensors"}) {
    v1::ArtifactFile& file = *good.add_files();
    file.set_path(path);
    file.mutable_blob()->set_sha256(kHash);
    file.mutable_blob()->set_size(3);
  }
  const auto path = [](const std::string& path) {
    return [=](Artifact& m) { m.mutable_files(0)->set_path(path); };
  };
  const auto node = [](const std::string& path) {
    return [=](Artifact& m) { m.set_kind("model"), m.set_node_path(path); };
  };
  const auto size = [](int64_t size) {
    return [=](Artifact& m) { m.mutable_files(0)->mutable_blob()->set_size(size); };
  };
  Expect<Artifact>(good,
                   {{node("/mnt/shared/job-1/model"), ""},
                    {node("/home/ann/../bob//shared/./job-1/model"), ""},
                    {[](Artifact& m) { m.set_kind("model"); }, "node_path"},
                    {[](Artifact& m) { m.set_kind("\x1b[2J"); }, "kind"},
                    {[](Artifact& m) { m.set_kind(std::string(100'000, 'k')); }, "kind"},
                    {[](Artifact& m) { m.clear_files(); }, "files"},
                    {path("../../etc/passwd"), "files.path"},
                    {path("/etc/passwd"), "files.path"},
                    {path("a\nb"), "files.path"},
                    {path("\xe2\x80\xaegpj.exe"), "files.path"},
                    {path(std::string(2000, 'p')), "files.path"},
                    {path("sub/b.safetensors"), "files.path"},
                    {[](Artifact& m) { m.mutable_files(0)->mutable_blob()->set_sha256("../x"); },
                     "files.blob.sha256"},
                    {size(-1), "files.blob.size"},
                    {size(kHuge), "files.blob.size"},
                    {[](Artifact& m) {
                       for (int i = 0; i < 5000; ++i) *m.add_files() = m.files(0);
                     },
                     "files: 5002"},
                    {[](Artifact& m) { m.set_node_path("/mnt/shared/job-1/model"); }, "node_path"},
                    {node("/mnt/shared/job-2/model"), "node_path"},
                    {node("/mnt/shared/job-1/model/../../job-2/model"), "node_path"},
                    {node("mnt/shared/job-1/model"), "node_path"},
                    {node("/etc"), "node_path"}},
                   [](const Artifact& m) { return CheckArtifact(m, PartOf()); });
}

TEST(NodeChecksTest, ACheckpointIsInOnePlaceOfItsOwnJob) {
  using Checkpoint = v1::CommitCheckpointRequest;
  Checkpoint good;
  good.set_step(20);
  good.set_bytes(100);
  good.set_reason("steps");
  good.set_shared_path("job-1/checkpoints/step-20");
  const auto node = [](const std::string& path) {
    return [=](Checkpoint& m) { m.clear_shared_path(), m.set_node_path(path); };
  };
  const auto shared = [](const std::string& path) {
    return [=](Checkpoint& m) { m.set_shared_path(path); };
  };
  Expect<Checkpoint>(good,
                     {{node("/var/lib/sft/checkpoints/job-1/step-20"), ""},
                      {node("/var/lib/sft/checkpoints/job-2/step-20"), "node_path"},
                      {node("/var/lib/sft/checkpoints/job-1/step-2"), "node_path"},
                      {node("/srv/x/../sft//checkpoints/./job-1/step-20"), ""},
                      {node("/sft/checkpoints/job-1/step-20/../../job-2/step-20"), "node_path"},
                      {shared("job-2/checkpoints/step-20"), "shared_path"},
                      {shared("../job-1/checkpoints/step-20"), "shared_path"},
                      {shared(""), "a checkpoint is in one place"},
                      {[](Checkpoint& m) { m.set_node_path("/checkpoints/job-1/step-20"); },
                       "a checkpoint is in one place"},
                      {[](Checkpoint& m) { m.set_step(0); }, "step"},
                      {[](Checkpoint& m) { m.set_step(kHuge); }, "step"},
                      {[](Checkpoint& m) { m.set_bytes(-1); }, "bytes"},
                      {[](Checkpoint& m) { m.set_bytes(kHuge); }, "bytes"},
                      {[](Checkpoint& m) { m.set_reason("a\nb"); }, "reason"},
                      {[](Checkpoint& m) { m.set_reason(std::string(100'000, 'r')); }, "reason"}},
                     [](const Checkpoint& m) { return CheckCheckpoint(m, PartOf()); });
}

TEST(NodeChecksTest, AStatusHasAStateAndNumbersThatCanBe) {
  using Status = v1::AttemptStatus;
  Status good;
  good.set_state(Status::RUNNING);
  good.set_rendezvous("10.0.0.1:29500");
  Expect<Status>(good,
                 {
                     {[](Status& m) { m.set_state(static_cast<Status::State>(9)); }, "state"},
                     {[](Status& m) { m.set_state(static_cast<Status::State>(-1)); }, "state"},
                     {[](Status& m) { m.set_rendezvous("a\nb:1"); }, "rendezvous"},
                     {[](Status& m) { m.set_checkpoint_newest(kHuge); }, "checkpoint_newest"},
                     {[](Status& m) { m.set_checkpoint_settled(-1); }, "checkpoint_settled"},
                 },
                 CheckStatus);
}

TEST(NodeChecksTest, ProgressHasNumbersThatCanBe) {
  using Progress = v1::Progress;
  Expect<Progress>(Progress(),
                   {{[](Progress& m) { m.set_step(-3); }, "progress.step"},
                    {[](Progress& m) { m.set_total_steps(kHuge); }, "progress.total_steps"},
                    {[](Progress& m) { m.set_phase("\x1b[2J"); }, "progress.phase"},
                    {[](Progress& m) { m.set_gpu_memory_bytes(-1); }, "progress.gpu_memory_bytes"}},
                   CheckProgress);
}

TEST(NodeChecksTest, AVerdictIsMadeToFitAndKept) {
  v1::Verdict said;
  said.set_domain(static_cast<v1::Verdict::Domain>(17));
  said.set_code("rank_killed");
  said.set_message(std::string(100'000, 'm'));
  said.set_advice("a\x1b[31mb\nc");
  said.set_node("z");
  said.set_rank(4);
  said.set_process(std::string(1000, 'p'));
  for (int i = 0; i < 1000; ++i) said.add_evidence(std::string(10'000, 'e'));
  const v1::Verdict kept = Bounded(said, PartOf());
  EXPECT_EQ(kept.domain(), v1::Verdict::UNKNOWN);
  EXPECT_EQ(kept.code(), "rank_killed");
  EXPECT_LT(kept.message().size(), 17'000u);
  EXPECT_THAT(kept.message(), HasSubstr("(100000 bytes)"));
  EXPECT_EQ(kept.advice(), "a\\x1b[31mb\nc");
  EXPECT_EQ(kept.node(), "") << "another node is not to blame";
  EXPECT_EQ(kept.rank(), -1);
  EXPECT_LT(kept.ByteSizeLong(), 100'000u);
  said.set_code("a b\n");
  EXPECT_EQ(Bounded(said, PartOf()).code(), "unknown");
  v1::Verdict good;
  good.set_domain(v1::Verdict::INFRASTRUCTURE);
  good.set_code("rank_hang");
  good.set_message("rank 1 hangs\nlast line");
  good.set_node("a");
  good.set_rank(1);
  good.add_evidence("exit 1");
  EXPECT_EQ(Bounded(good, PartOf()).SerializeAsString(), good.SerializeAsString());
}

TEST(NodeChecksTest, ANodeHasPlainNamesAndAsMuchAsAMachineCanHave) {
  using Node = v1::Register;
  Node good;
  good.set_node("b");
  good.set_incarnation("life-1");
  v1::Slot& slot = *good.add_slots();
  slot.set_gpu_type("H100");
  Expect<Node>(good,
               {{[](Node& m) { m.set_node("a\nb"); }, "node name"},
                {[](Node& m) { m.clear_incarnation(); }, "a Register without incarnation"},
                {[](Node& m) { m.set_incarnation(std::string(5000, 'i')); }, "incarnation"},
                {[](Node& m) { m.set_hostname("h\x1b[2J"); }, "hostname"},
                {[](Node& m) { m.set_version("1\n2"); }, "version"},
                {[](Node& m) { m.set_cpus(-4); }, "cpus"},
                {[](Node& m) { m.set_memory_bytes(kHuge); }, "memory_bytes"},
                {[](Node& m) { *m.add_slots() = m.slots(0); }, "slots.index: 0 is named twice"},
                {[](Node& m) { m.mutable_slots(0)->set_index(-1); }, "slots.index"},
                {[](Node& m) { m.mutable_slots(0)->set_index(1 << 30); }, "slots.index"},
                {[](Node& m) { m.mutable_slots(0)->clear_gpu_type(); }, "slots.gpu_type"},
                {[](Node& m) { m.mutable_slots(0)->set_gpu_type("H\n1"); }, "slots.gpu_type"},
                {[](Node& m) { m.mutable_slots(0)->set_memory_bytes(-1); }, "slots.memory_bytes"},
                {[](Node& m) {
                   for (int i = 1; i < 5000; ++i) m.add_slots()->set_index(i);
                 },
                 "slots: 5000"}},
               CheckNode);
}

TEST(NodeChecksTest, ModelsDisksAndFactsAreBounded) {
  using Model = v1::Model;
  Model model;
  model.set_id("org/name");
  model.set_path("/models/org/name");
  Expect<Model>(
      model,
      {{[](Model& m) { m.clear_id(); }, "models.id"},
       {[](Model& m) { m.set_id("a\tb"); }, "models.id"},
       {[](Model& m) { m.set_path(std::string(5000, '/')); }, "models.path"},
       {[](Model& m) { m.set_bytes(-1); }, "models.bytes"},
       {[](Model& m) { m.set_config_json(std::string(2 << 20, ' ')); }, "models.config_json"}},
      CheckModel);
  using Disk = v1::NodeDisk;
  Expect<Disk>(Disk(),
               {{[](Disk& m) { m.set_level(static_cast<Disk::Level>(9)); }, "disk.level"},
                {[](Disk& m) { m.set_free_bytes(-1); }, "disk.free_bytes"},
                {[](Disk& m) { m.set_total_bytes(kHuge); }, "disk.total_bytes"}},
               CheckDisk);
  using Facts = v1::NodeFacts;
  Expect<Facts>(
      Facts(),
      {{[](Facts& m) { m.set_driver_version("5\n"); }, "facts.driver_version"},
       {[](Facts& m) { m.set_place("block-a/rack-3"); }, ""},
       {[](Facts& m) { m.set_place("a\tb"); }, "facts.place"},
       {[](Facts& m) { m.set_place(std::string(513, 'x')); }, "facts.place"},
       {[](Facts& m) { m.add_network_settings("NCCL_X=\x1b"); }, "facts.network_settings"},
       {[](Facts& m) {
          for (int i = 0; i < 513; ++i) m.add_network_settings("NCCL_X=1");
        },
        "facts.network_settings"},
       {[](Facts& m) { m.add_links()->set_active_links(-1); }, "facts.links.active_links"},
       {[](Facts& m) {
          for (int i = 0; i < 300; ++i) m.add_networks("mlx5");
        },
        "facts.networks"}},
      CheckFacts);
  EXPECT_TRUE(CheckTime(0).ok());
  EXPECT_FALSE(CheckTime(std::numeric_limits<int64_t>::min()).ok());
  EXPECT_FALSE(CheckTime(kHuge).ok());
}

}  // namespace
}  // namespace sft::server
