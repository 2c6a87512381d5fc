#include "server/fleet/fleet_catalog.h"

#include <gtest/gtest.h>

#include "server/store/nodes.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class FleetCatalogTest : public FleetTest {
 protected:
  void PutModel(const std::string& node, const std::string& id, const std::string& problem) {
    ModelRecord model;
    model.node = node;
    model.id = id;
    model.path = "/models/" + id;
    model.problem = problem;
    ASSERT_TRUE(
        store_->Write([&](Database& db) { return store::PutModels(db, node, {model}); }).ok());
  }

  FleetCatalog view_{*store_};
};

TEST_F(FleetCatalogTest, ItIsCachedUntilAChangeOfTheNodesIsStored) {
  const auto none = view_.Get().value();
  EXPECT_FALSE(none->has_nodes);
  EXPECT_TRUE(none->types.empty());
  Join("a", "H100", 4);
  const auto one = view_.Get().value();
  EXPECT_EQ(one->types.at("H100").most, 4);
  EXPECT_TRUE(one->types.at("H100").real);
  Submit("H100", 1);
  Tick();
  EXPECT_EQ(view_.Get().value(), one) << "a job is no news of the nodes";
  Join("b", "H100", 8);
  const auto two = view_.Get().value();
  EXPECT_EQ(two->types.at("H100").most, 8);
  EXPECT_EQ(two->types.at("H100").nodes, (std::vector<std::string>{"a", "b"}));
}

TEST_F(FleetCatalogTest, AUsableModelIsPreferred) {
  Join("a", "H100", 1);
  Join("b", "H100", 1);
  EXPECT_EQ(view_.FindModel("m").value(), nullptr);
  PutModel("a", "m", "no tokenizer");
  EXPECT_EQ(view_.FindModel("m").value()->problem, "no tokenizer");
  PutModel("b", "m", "");
  EXPECT_EQ(view_.FindModel("m").value()->node, "b");
  EXPECT_EQ(view_.FindModel("/models/m").value()->node, "b");
}

}  // namespace
}  // namespace sft::server
