#include "server/fleet/model_copies.h"

#include <gmock/gmock.h>

#include <functional>
#include <utility>

#include "common/io/model_folder.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

const std::string kCommit(40, 'c');

class ModelCopiesTest : public FleetTest {
 protected:
  ModelCopiesTest() : relay_(*registry_), copies_(*store_, *registry_, relay_) {}

  // A node with a snapshot of org/m that sends these chunks of any file; "!..." is an error.
  std::shared_ptr<FakeWorker> JoinWithModel(const std::string& node,
                                            const std::vector<std::string>& chunks) {
    auto worker = std::make_shared<FakeWorker>();
    v1::Register message = RegisterOf(node, "H100", 1);
    v1::Model& model = *message.add_models();
    model.set_id("org/m");
    model.set_path("/hub/models--org--m/snapshots/" + kCommit);
    EXPECT_TRUE(registry_->Connect(message, worker).ok());
    worker->on_fetch = [this, node, chunks](const v1::FetchFile& fetch) {
      v1::SendFileRequest chunk;
      chunk.set_request(fetch.request());
      chunk.set_offset(fetch.offset());
      int64_t total = fetch.offset();
      for (const std::string& each : chunks) total += static_cast<int64_t>(each.size());
      for (const std::string& each : chunks) {
        chunk.set_total_size(total);
        if (each.starts_with("!")) chunk.set_error(each);
        if (!each.starts_with("!")) chunk.set_data(each);
        EXPECT_TRUE(relay_.Push(chunk, node).ok());
        chunk.set_offset(chunk.offset() + static_cast<int64_t>(each.size()));
      }
      relay_.End(fetch.request());
    };
    return worker;
  }
  // An attempt of a job with this model on a CPU node.
  void Place(const std::string& node, const std::string& model) {
    v1::Register message = RegisterOf(node, "CPU", 1);
    message.mutable_facts()->mutable_hub()->set_endpoint("https://hub");  // it downloads models
    EXPECT_TRUE(registry_->Connect(message, std::make_shared<FakeWorker>()).ok());
    JobRecord job;
    job.id = "job-9";
    job.project = "default";
    job.gpu_type = "CPU";
    job.model = model;
    job.spec.emplace();
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    Tick();
  }
  static v1::FetchModelFileRequest Request(const std::string& node = "b") {
    v1::FetchModelFileRequest request;
    request.set_node(node);
    request.set_model("org/m");
    request.set_commit(kCommit);
    request.set_path("model.safetensors");
    request.set_offset(7);
    return request;
  }
  absl::Status Send(const v1::FetchModelFileRequest& request) {
    text_.clear();
    from_.clear();
    return copies_.Send(
        request,
        [this](const v1::FetchModelFileResponse& part) {
          text_ += part.data();
          from_ += part.from_node();
          return true;
        },
        nullptr);
  }

  FileRelay relay_;
  ModelCopies copies_;
  std::string text_, from_;
};

TEST_F(ModelCopiesTest, ANodeGetsAFileOfAModelThatItsJobNeedsFromANodeThatHasIt) {
  const auto a = JoinWithModel("a", {"we", "ights"});
  EXPECT_TRUE(absl::IsNotFound(Send(Request()))) << "no job there needs it";
  Place("b", "org/m@" + kCommit);
  const absl::Status sent = Send(Request());
  ASSERT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(text_, "weights");
  EXPECT_EQ(from_, "a");
  ASSERT_EQ(a->fetches.size(), 1u);
  EXPECT_EQ(a->fetches[0].path(),
            "/hub/models--org--m/snapshots/" + kCommit + "/model.safetensors");
  EXPECT_EQ(a->fetches[0].offset(), 7);
  v1::FetchModelFileRequest other = Request();
  other.set_commit(std::string(40, 'd'));
  EXPECT_TRUE(absl::IsNotFound(Send(other)));
  other = Request();
  other.set_model("org/other");
  EXPECT_TRUE(absl::IsNotFound(Send(other)));
}

TEST_F(ModelCopiesTest, ANodeThatCannotSendIsPassedOver) {
  JoinWithModel("a", {"!cannot open it"});
  const auto c = JoinWithModel("c", {"weights"});
  Place("b", "org/m@" + kCommit);
  const absl::Status sent = Send(Request());
  ASSERT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(from_, "c");
  registry_->Disconnect("c", c.get());
  EXPECT_TRUE(absl::IsNotFound(Send(Request())));
}

TEST_F(ModelCopiesTest, ANodeSendsNoMoreThanItsWorkerDoes) {
  JoinWithModel("a", {"weights"});
  Place("b", "org/m@" + kCommit);
  // Each is asked for while those before it are on their way.
  int sending = 0;
  absl::Status last;
  const std::function<void()> next = [&] {
    last = copies_.Send(
        Request(),
        [&, begun = false](const v1::FetchModelFileResponse&) mutable {
          if (!std::exchange(begun, true)) {
            ++sending;
            next();
          }
          return true;
        },
        nullptr);
    if (absl::IsResourceExhausted(last)) {
      EXPECT_EQ(sending, ModelCopies::kMostOfNode);
      EXPECT_EQ(Message(last), "node a sends 4 files of models");
    } else {
      EXPECT_TRUE(last.ok()) << last;
    }
  };
  next();
  EXPECT_EQ(sending, ModelCopies::kMostOfNode);
  // Another that has it sends the fifth.
  JoinWithModel("c", {"weights"});
  sending = 0;
  std::vector<std::string> nodes;
  const std::function<void()> from_both = [&] {
    (void)copies_.Send(
        Request(),
        [&](const v1::FetchModelFileResponse& part) {
          if (!part.from_node().empty()) nodes.push_back(part.from_node());
          if (!part.from_node().empty() && nodes.size() < 5) from_both();
          return true;
        },
        nullptr);
  };
  from_both();
  EXPECT_EQ(nodes, (std::vector<std::string>{"a", "a", "a", "a", "c"}));
}

TEST_F(ModelCopiesTest, WhatIsNoFileOfAModelIsRefused) {
  JoinWithModel("a", {"weights"});
  Place("b", "org/m");
  for (const char* path : {"", "../config.json", "/etc/passwd", "a/../b"}) {
    v1::FetchModelFileRequest request = Request();
    request.set_path(path);
    EXPECT_TRUE(absl::IsInvalidArgument(Send(request))) << path;
  }
  v1::FetchModelFileRequest request = Request();
  request.set_commit("main");
  EXPECT_TRUE(absl::IsInvalidArgument(Send(request)));
  request = Request();
  request.set_model("/models/m");
  EXPECT_TRUE(absl::IsInvalidArgument(Send(request)));
}

TEST_F(ModelCopiesTest, ATokenizerIsSentFileByFileAndOfAModelThatTheReaderSees) {
  std::map<std::string, std::string> files;
  const auto send = [&](const std::string& model) {
    files.clear();
    return copies_.SendTokenizer(
        model, {"local", ""},
        [&](std::string_view file, const std::string& bytes) {
          files[std::string(file)] += bytes;
          return true;
        },
        nullptr);
  };
  EXPECT_EQ(Message(send("org/m")),
            "no node has the model org/m: `sftctl models` lists those that there are");
  const auto a = JoinWithModel("a", {"te", "xt"});
  for (const std::string& model : {std::string("org/m"), "org/m@" + kCommit}) {
    const absl::Status sent = send(model);
    ASSERT_TRUE(sent.ok()) << sent;
    EXPECT_EQ(files.size(), io::kModelCompanions.size() + 1);
    EXPECT_EQ(files["tokenizer.json"], "text");
    EXPECT_EQ(files["config.json"], "text");
  }
  EXPECT_EQ(a->fetches.front().path(), "/hub/models--org--m/snapshots/" + kCommit + "/config.json");
  registry_->Disconnect("a", a.get());
  EXPECT_EQ(Message(send("org/m")), "no node that has the model org/m is connected now");
}

TEST_F(ModelCopiesTest, AModelWithoutATokenizerIsSaidToHaveNone) {
  auto worker = JoinWithModel("a", {"text"});
  const auto sends = worker->on_fetch;
  worker->on_fetch = [this, sends](const v1::FetchFile& fetch) {
    if (fetch.path().ends_with("/config.json")) return sends(fetch);
    v1::SendFileRequest chunk;
    chunk.set_request(fetch.request());
    chunk.set_error("no such file");
    EXPECT_TRUE(relay_.Push(chunk, "a").ok());
  };
  const auto take = [](std::string_view, const std::string&) { return true; };
  const absl::Status sent = copies_.SendTokenizer("org/m", {"local", ""}, take, nullptr);
  EXPECT_TRUE(absl::IsNotFound(sent));
  EXPECT_THAT(std::string(Message(sent)), testing::HasSubstr("node a sends no tokenizer of org/m"));
}

TEST_F(ModelCopiesTest, ANodeThatBreaksOffSendsNoHalfTokenizer) {
  auto worker = JoinWithModel("a", {"text"});
  const auto sends = worker->on_fetch;
  worker->on_fetch = [this, sends, &worker](const v1::FetchFile& fetch) {
    if (!fetch.path().ends_with("/chat_template.jinja")) return sends(fetch);
    registry_->Disconnect("a", worker.get());  // says nothing any more
  };
  const auto take = [](std::string_view, const std::string&) { return true; };
  EXPECT_TRUE(absl::IsUnavailable(copies_.SendTokenizer("org/m", {"local", ""}, take, nullptr)));
}

TEST_F(ModelCopiesTest, AUserFetchesFewTokenizersAtOnce) {
  JoinWithModel("a", {"text"});
  int depth = 0;
  absl::Status last;
  const std::function<void()> next = [&] {
    ++depth;
    last = copies_.SendTokenizer(
        "org/m", {"local", ""},
        [&, begun = false](std::string_view, const std::string&) mutable {
          if (!std::exchange(begun, true) && depth <= ModelCopies::kMostOfReader) next();
          return true;
        },
        nullptr);
    if (depth > ModelCopies::kMostOfReader && absl::IsResourceExhausted(last)) {
      EXPECT_EQ(Message(last), "2 tokenizers are being fetched: try again later");
    }
  };
  next();
  EXPECT_EQ(depth, ModelCopies::kMostOfReader + 1);
}

}  // namespace
}  // namespace sft::server
