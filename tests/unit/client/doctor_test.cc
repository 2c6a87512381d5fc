#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "client/base/exit_codes.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/version.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    server_.info.set_version(kVersion);
    server_.info.set_protocol(kProtocol);
    server_.info.set_min_protocol(kProtocol - 1);
    v1::Node node;
    node.set_name("nodes/n1");
    node.set_state(v1::Node::UP);
    v1::Slot* slot = node.add_slots();
    slot->set_gpu_type("H100");
    slot->set_healthy(true);
    node.mutable_facts()->mutable_hub()->set_endpoint("https://hub.example");
    server_.identity.mutable_user()->set_name("ann");
    server_.identity.mutable_user()->set_admin(true);
    server_.nodes = {node};
    v1::NodeModel model;
    model.set_node("nodes/n1");
    model.mutable_model()->set_id("org/good");
    server_.models = {model};
  }
  ~DoctorTest() override {
    for (const char* name : {"TRAIN_BATCH_SIZE", "TRAIN_BATCHSIZE", "PYTORCH_CUDA_ALLOC_CONF"}) {
      unsetenv(name);
    }
  }
  Outcome Run() { return Sftctl(server_, {"doctor"}); }

  FakeServer server_;
};

TEST_F(DoctorTest, SaysInOnePageWhatAJobNeeds) {
  const Outcome run = Run();
  EXPECT_EQ(run.code, kSucceeded) << run.out;
  EXPECT_THAT(run.out, HasSubstr("ok    user          ann, admin, without a token"));
  EXPECT_THAT(run.out, HasSubstr(std::string("ok    sftctl        ") + kVersion));
  EXPECT_THAT(run.out, HasSubstr("sft-server " + std::string(kVersion)));
  EXPECT_THAT(run.out, HasSubstr("ok    nodes         1 of 1 connected"));
  EXPECT_THAT(run.out, HasSubstr("ok    slots         1 H100, 1 free"));
  EXPECT_THAT(run.out, HasSubstr("1 of 1 nodes download models from https://hub.example"));
  EXPECT_THAT(run.out, HasSubstr("ok    models        org/good"));
  const auto json = ParseJson(Sftctl(server_, {"doctor", "--json"}).out);
  ASSERT_TRUE(json.is_object());
  EXPECT_GT(json["checks"].size(), 8u);
}

TEST_F(DoctorTest, EachFindingSaysWhatToDo) {
  v1::Node& node = server_.nodes[0];
  node.mutable_slots(0)->set_healthy(false);
  node.mutable_slots(0)->set_health_reason("fell off the bus");
  node.set_clock_offset_seconds(7);
  node.mutable_disk()->set_level(v1::NodeDisk::LOW);
  node.mutable_hold()->set_who("ann");
  server_.models[0].mutable_model()->set_problem("tokenizer.json is missing");
  server_.info.set_time_us(UnixMicros(FakeClock().Wall()) + 3'600'000'000);
  const Outcome run = Run();
  EXPECT_EQ(run.code, kRefused);
  EXPECT_THAT(run.out, HasSubstr("FAIL  clock"));
  EXPECT_THAT(run.out, HasSubstr("n1: H100 0: fell off the bus"));
  EXPECT_THAT(run.out, HasSubstr("n1: clock: +7.0 s"));
  EXPECT_THAT(run.out, HasSubstr("n1: disk: "));
  EXPECT_THAT(run.out, HasSubstr("n1: cordoned by ann"));
  EXPECT_THAT(run.out, HasSubstr("org/good on n1: tokenizer.json is missing"));
  EXPECT_THAT(run.out, HasSubstr("FAIL  slots         1 H100, 0 free, 1 unhealthy"));
  EXPECT_THAT(run.out, HasSubstr("-> `sftctl nodes`"));
  server_.nodes.clear();
  EXPECT_THAT(Run().out, HasSubstr("FAIL  nodes         none has ever connected"));
}

TEST_F(DoctorTest, AServerOfAnotherVersionIsNamed) {
  server_.info.set_version("0.0.9");
  EXPECT_THAT(Run().out, HasSubstr("warn  server        sft-server 0.0.9"));
  server_.info.set_min_protocol(kProtocol + 1);
  server_.info.set_protocol(kProtocol + 2);
  const Outcome run = Run();
  EXPECT_EQ(run.code, kRefused);
  EXPECT_THAT(run.out, HasSubstr("FAIL  server"));
  EXPECT_THAT(run.out, Not(HasSubstr("nodes")));
}

TEST_F(DoctorTest, WhoMayOnlyLookOrWhoseTokenEndsIsTold) {
  v1::User& user = *server_.identity.mutable_user();
  user.set_admin(false);
  EXPECT_THAT(Run().out, HasSubstr("FAIL  project       you have no role in any project"));
  v1::ProjectRole* role = user.add_roles();
  role->set_project("alpha");
  role->set_role(v1::VIEWER);
  EXPECT_THAT(Run().out, HasSubstr("warn  project"));
  role->set_role(v1::SUBMITTER);
  EXPECT_THAT(Run().out, HasSubstr("ok    project"));
  EXPECT_EQ(Sftctl(server_, {"doctor", "--project", "beta"}).code, kRefused);
  server_.identity.set_token_id("t1");
  server_.identity.mutable_server_time()->set_seconds(1'000'000);
  server_.identity.mutable_expire_time()->set_seconds(1'000'000 + 3600);
  EXPECT_THAT(Run().out, HasSubstr("warn  user          ann, token t1 for 1h00m more"));
}

TEST_F(DoctorTest, VariablesAreHonouredIgnoredOrMisspelt) {
  setenv("TRAIN_BATCH_SIZE", "4", 1);
  setenv("TRAIN_BATCHSIZE", "secret", 1);
  setenv("PYTORCH_CUDA_ALLOC_CONF", "secret", 1);
  const std::string out = Run().out;
  EXPECT_THAT(out, HasSubstr("TRAIN_BATCH_SIZE=4 sets hyperparameters.per_device_batch"));
  EXPECT_THAT(out, HasSubstr("TRAIN_BATCHSIZE names no key of a job"));
  EXPECT_THAT(out, HasSubstr("did you mean TRAIN_BATCH_SIZE?"));
  EXPECT_THAT(out, HasSubstr("PYTORCH_CUDA_ALLOC_CONF has no effect"));
  EXPECT_THAT(out, Not(HasSubstr("secret")));
  setenv("TRAIN_BATCH_SIZE", "four", 1);
  const Outcome wrong = Run();
  EXPECT_EQ(wrong.code, kRefused);
  EXPECT_THAT(wrong.out, HasSubstr("FAIL  variable      TRAIN_BATCH_SIZE=four"));
}

}  // namespace
}  // namespace sft::client
