#include "server/jobs/profiling.h"

#include <gmock/gmock.h>

#include "common/base/json.h"
#include "common/data/gzip_parts.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ProfilingTest : public FleetTest {
 protected:
  ProfilingTest() : relay_(*registry_), profiling_(*store_, relay_) {
    for (const std::string node : {"a", "b"}) workers_[node] = Join(node, "CPU", 1);
  }

  // A running job with rank 0 on one node and rank 1 on the other.
  std::string Running() {
    const std::string job = Submit("CPU", 1, 2);
    Tick();
    for (const auto& [node, worker] : workers_) {
      Report(node, worker, Uid(job), v1::AttemptStatus::RUNNING);
    }
    EXPECT_EQ(State(job), v1::Job::RUNNING);
    return job;
  }

  // What a node sends: it is asked, says that it waits, then has tables and traces.
  class Node {
   public:
    Node(FileRelay& relay, std::string node, const v1::RecordSteps& order)
        : relay_(relay), node_(std::move(node)) {
      chunk_.set_request(order.request());
    }
    void Say(const v1::RecordedPiece& piece) { Send(piece.SerializeAsString()); }
    void SayWaiting(const std::string& what) {
      v1::RecordedPiece piece;
      piece.set_waiting(what);
      Say(piece);
    }
    void SayTable(int rank, const data::TextSum& sum = {}) {
      v1::RecordedPiece piece;
      piece.mutable_rank()->set_rank(rank);
      piece.mutable_rank()->set_device("cpu\x1b[2J");
      piece.set_trace_crc32(sum.crc32);
      piece.set_trace_text_bytes(sum.bytes);
      Say(piece);
    }
    void SayTrace(const std::string& bytes) {
      v1::RecordedPiece piece;
      piece.set_trace(bytes);
      Say(piece);
    }
    void Send(const std::string& bytes) {
      chunk_.set_offset(chunk_.total_size());
      chunk_.set_data(bytes);
      chunk_.set_total_size(chunk_.offset() + static_cast<int64_t>(bytes.size()));
      EXPECT_TRUE(relay_.Push(chunk_, node_).ok());
    }
    void Fail(const std::string& why) {
      chunk_.set_error(why);
      EXPECT_TRUE(relay_.Push(chunk_, node_).ok());
    }
    void End() { relay_.End(chunk_.request()); }

   private:
    FileRelay& relay_;
    const std::string node_;
    v1::SendFileRequest chunk_;
  };
  // `answer` is what a node does when it is asked.
  void OnRecord(const std::function<void(Node&, const v1::RecordSteps&)>& answer) {
    for (const auto& [name, worker] : workers_) {
      worker->on_record = [this, name = name, answer](const v1::RecordSteps& order) {
        orders_[name] = order;
        Node node(relay_, name, order);
        answer(node, order);
      };
    }
  }
  // Each rank has one event, by its number.
  void AnswerWell() {
    OnRecord([](Node& node, const v1::RecordSteps& order) {
      node.SayWaiting("rank: step 4 of 9");
      for (const int rank : order.ranks()) {
        std::string packed;
        data::PartPacker packer([&](std::string_view bytes) { packed += bytes; });
        packer.Add(",\n{\"name\":\"event of " + std::to_string(rank) + "\"}");
        packer.Finish();
        node.SayTable(rank, packer.sum());
        node.SayTrace(packed);
      }
      node.End();
    });
  }

  static v1::ProfileJobRequest Request(const std::string& job, bool all = true) {
    v1::ProfileJobRequest request;
    request.set_name(job);
    request.set_all_ranks(all);
    return request;
  }
  absl::Status Profile(const v1::ProfileJobRequest& request) {
    responses_.clear();
    return profiling_.Profile(
        request,
        [this](const v1::ProfileJobResponse& response) {
          responses_.push_back(response);
          return true;
        },
        [] { return false; });
  }
  std::string Error(const v1::ProfileJobRequest& request) {
    return std::string(Message(Profile(request)));
  }

  FileRelay relay_;
  Profiling profiling_;
  std::map<std::string, std::shared_ptr<FakeWorker>> workers_;
  std::map<std::string, v1::RecordSteps> orders_;
  std::vector<v1::ProfileJobResponse> responses_;
};

TEST_F(ProfilingTest, TablesOfAllNodesComeBeforeOneFileOfTheirTraces) {
  const std::string job = Running();
  AnswerWell();
  const absl::Status status = Profile(Request(job));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(orders_["a"].attempt_uid(), Uid(job));
  EXPECT_EQ(orders_["a"].steps(), 3);
  EXPECT_EQ(orders_["a"].ranks_size() + orders_["b"].ranks_size(), 2);
  std::string bytes;
  std::set<int> ranks;
  bool waited = false;
  for (const v1::ProfileJobResponse& response : responses_) {
    waited = waited || !response.waiting().empty();
    bytes += response.trace();
    if (!response.has_rank()) continue;
    EXPECT_TRUE(bytes.empty()) << "tables come first";
    EXPECT_EQ(response.rank().device().find('\x1b'), std::string::npos);
    ranks.insert(response.rank().rank());
  }
  EXPECT_TRUE(waited);
  EXPECT_THAT(ranks, ElementsAre(0, 1));
  ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/t.gz", bytes).ok());
  ASSERT_EQ(std::system(("gzip -d " + dir_ + "/t.gz").c_str()), 0);
  const nlohmann::json trace = ParseJson(io::ReadFile(dir_ + "/t").value());
  EXPECT_EQ(trace["traceEvents"].size(), 3u) << trace.dump();
}

TEST_F(ProfilingTest, WithoutARankTheFirstIsRecorded) {
  const std::string job = Running();
  AnswerWell();
  v1::ProfileJobRequest request = Request(job, /*all=*/false);
  request.set_steps(7);
  ASSERT_TRUE(Profile(request).ok());
  ASSERT_EQ(orders_.size(), 1u);
  EXPECT_EQ(orders_.begin()->second.steps(), 7);
  EXPECT_THAT(orders_.begin()->second.ranks(), ElementsAre(0));
}

TEST_F(ProfilingTest, RanksAndStepsThatThereAreNotAreRefused) {
  v1::ProfileJobRequest request = Request(Running(), /*all=*/false);
  request.add_ranks(2);
  EXPECT_THAT(Error(request), HasSubstr("no rank 2: its ranks are 0 to 1"));
  request.set_ranks(0, -1);
  EXPECT_THAT(Error(request), HasSubstr("no rank -1"));
  for (int rank = 0; rank < 20; ++rank) request.add_ranks(rank);
  EXPECT_THAT(Error(request), HasSubstr("at most 16"));
  request.clear_ranks();
  for (const int steps : {-1, 21}) {
    request.set_steps(steps);
    EXPECT_TRUE(absl::IsInvalidArgument(Profile(request))) << steps;
  }
  EXPECT_TRUE(orders_.empty());
}

TEST_F(ProfilingTest, AJobThatIsQueuedHasEndedOrTrainsNothingIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(Profile(Request("job-none"))));
  const std::string job = Running();
  const std::string queued = Submit("CPU", 1);
  Tick();
  EXPECT_THAT(Error(Request(queued)), HasSubstr("profile it when it runs"));
  for (const auto& [node, worker] : workers_) {
    Report(node, worker, Uid(job), v1::AttemptStatus::DONE, "succeeded");
  }
  ASSERT_EQ(State(job), v1::Job::SUCCEEDED);
  EXPECT_THAT(Error(Request(job)), HasSubstr("only a running job can be profiled"));
  JobRecord serving;
  serving.id = "job-serves";
  serving.project = "default";
  serving.kind = v1::Job::SERVE;
  serving.gpu_type = "CPU";
  serving.spec.emplace();
  ASSERT_TRUE(jobs_->Submit(serving, {}).ok());
  EXPECT_THAT(Error(Request("job-serves")), HasSubstr("trains nothing"));
  EXPECT_TRUE(orders_.empty());
}

TEST_F(ProfilingTest, WhatANodeCouldNotDoIsSaid) {
  const std::string job = Running();
  OnRecord([](Node& node, const v1::RecordSteps&) { node.Fail("rank 0: no memory"); });
  const absl::Status status = Profile(Request(job));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr("rank 0: no memory"));
  workers_["a"]->on_record = {};
  workers_["b"]->on_record = {};
  AnswerWell();
  EXPECT_TRUE(Profile(Request(job)).ok()) << "nothing of it is left";
}

TEST_F(ProfilingTest, WhatIsNoRecordingIsRefused) {
  const std::string job = Running();
  OnRecord([](Node& node, const v1::RecordSteps&) { node.End(); });
  EXPECT_TRUE(absl::IsUnavailable(Profile(Request(job)))) << "ended early";
  OnRecord([](Node& node, const v1::RecordSteps&) { node.Send("\xff\xff"); });
  EXPECT_TRUE(absl::IsInternal(Profile(Request(job))));
  OnRecord([](Node& node, const v1::RecordSteps&) { node.SayTable(7); });
  EXPECT_TRUE(absl::IsInternal(Profile(Request(job)))) << "a rank that was not asked for";
  OnRecord([](Node& node, const v1::RecordSteps& order) {
    node.SayTable(order.ranks(0), {0, -1});
  });
  EXPECT_TRUE(absl::IsInternal(Profile(Request(job)))) << "a trace of -1 bytes";
  OnRecord([](Node& node, const v1::RecordSteps& order) {
    node.SayTable(order.ranks(0));
    for (int i = 0; i < 3; ++i) node.SayTrace(std::string(12 << 20, 'x'));
    node.End();
  });
  EXPECT_TRUE(absl::IsInternal(Profile(Request(job, /*all=*/false)))) << "a trace without an end";
}

TEST_F(ProfilingTest, TwoCallsDoNotRecordAJobAtOnce) {
  const std::string job = Running();
  AnswerWell();
  absl::Status second;
  const absl::Status first = profiling_.Profile(
      Request(job),
      [&](const v1::ProfileJobResponse&) {
        second = Profile(Request(job));
        return true;
      },
      [] { return false; });
  EXPECT_TRUE(first.ok()) << first;
  EXPECT_TRUE(absl::IsAborted(second)) << second;
  EXPECT_THAT(std::string(Message(second)), HasSubstr("profiled by another call"));
}

TEST_F(ProfilingTest, AReaderThatGoesEndsTheRecording) {
  const std::string job = Running();
  AnswerWell();
  const absl::Status gone = profiling_.Profile(
      Request(job), [](const v1::ProfileJobResponse&) { return false; }, [] { return true; });
  EXPECT_TRUE(absl::IsCancelled(gone)) << gone;
  v1::SendFileRequest late;
  late.set_request(orders_["a"].request());
  EXPECT_TRUE(absl::IsNotFound(relay_.Push(late, "a"))) << "the node learns of it";
  EXPECT_TRUE(Profile(Request(job)).ok()) << "the job can be profiled again";
}

TEST_F(ProfilingTest, ANodeThatIsNotConnectedIsSaid) {
  const std::string job = Running();
  registry_->Disconnect("a", workers_["a"].get());
  registry_->Disconnect("b", workers_["b"].get());
  EXPECT_THAT(Error(Request(job)), HasSubstr("not connected"));
}

}  // namespace
}  // namespace sft::server
