#include "server/fleet/model_facts.h"

#include <gtest/gtest.h>

#include "common/plan/model_config.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

constexpr char kSmall[] = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 128, "dtype": "bfloat16"})";

class ModelFactsTest : public FleetTest {
 protected:
  void JoinWithMemory(const std::string& node, const std::string& type, int64_t gigabytes) {
    v1::Register message = RegisterOf(node, type, 1);
    message.mutable_slots(0)->set_memory_bytes(gigabytes * 1'000'000'000);
    ASSERT_TRUE(registry_->Connect(message, std::make_shared<FakeWorker>()).ok());
  }
  static ModelRecord Model(const std::string& config, const std::string& problem = "") {
    ModelRecord model;
    model.node = "a";
    model.id = "m";
    model.path = "/models/m";
    model.config_json = config;
    model.bytes = 100'000;
    model.problem = problem;
    return model;
  }

  FleetCatalog fleet_{*store_};
  ModelFacts facts_{fleet_};
};

TEST_F(ModelFactsTest, NeedsAreToldForEachTypeOfTheFleetTheLargestFirst) {
  JoinWithMemory("a", "L4", 24);
  JoinWithMemory("b", "H200", 141);
  Join("c", "CPU", 4);
  for (int i = 0; i < 2; ++i) {  // computed, and kept
    const v1::NodeModel model = facts_.Describe(Model(kSmall));
    EXPECT_EQ(model.node(), "a");
    EXPECT_EQ(model.model().path(), "/models/m");
    EXPECT_EQ(model.model().problem(), "");
    EXPECT_EQ(model.family(), "llama");
    EXPECT_EQ(model.parameters(), 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 2 * 128 * 64 + 64);
    EXPECT_EQ(model.active_parameters(), model.parameters());
    EXPECT_EQ(model.stored(), "bf16");
    ASSERT_EQ(model.needs_size(), 6);
    EXPECT_EQ(model.needs(0).gpu_type(), "H200");
    EXPECT_EQ(model.needs(0).gpu_memory_bytes(), 141'000'000'000);
    EXPECT_TRUE(model.needs(0).smallest());
    EXPECT_FALSE(model.needs(0).assumed());
    EXPECT_FALSE(model.needs(1).speed_from_peaks());
    EXPECT_EQ(model.needs(3).gpu_type(), "L4");
    EXPECT_TRUE(model.needs(5).speed_from_peaks());
  }
  JoinWithMemory("d", "B200", 180);
  EXPECT_EQ(facts_.Describe(Model(kSmall)).needs_size(), 9) << "the fleet has changed";
}

TEST_F(ModelFactsTest, WithoutGpusAnH100IsTheExample) {
  Join("a", "CPU", 4);
  const v1::NodeModel model = facts_.Describe(Model(kSmall));
  ASSERT_EQ(model.needs_size(), 3);
  EXPECT_EQ(model.needs(0).gpu_type(), "H100");
  EXPECT_TRUE(model.needs(0).assumed());
}

TEST_F(ModelFactsTest, AModelThatIsRefusedSaysWhy) {
  const v1::NodeModel unread = facts_.Describe(Model(R"({"model_type": "gemma2"})"));
  EXPECT_EQ(unread.model().problem(),
            Message(plan::ParseModelConfig(R"({"model_type": "gemma2"})").status()));
  EXPECT_NE(unread.model().problem().find("the nearest is gemma3_text"), std::string::npos);
  EXPECT_EQ(unread.needs_size(), 0);
  // What the node found goes first; what its config.json says is told all the same.
  const v1::NodeModel broken = facts_.Describe(Model(kSmall, "tokenizer.json is missing"));
  EXPECT_EQ(broken.model().problem(), "tokenizer.json is missing");
  EXPECT_EQ(broken.family(), "llama");
  const v1::NodeModel none = facts_.Describe(Model("", "config.json is missing"));
  EXPECT_EQ(none.model().problem(), "config.json is missing");
  EXPECT_EQ(none.family(), "");
}

}  // namespace
}  // namespace sft::server
