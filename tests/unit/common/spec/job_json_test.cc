#include "common/spec/job_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/spec/visit.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

// A spec in which every member differs from its default.
JobSpec Altered() {
  JobSpec spec;
  VisitSpec(spec, [](std::string_view key, auto& member) {
    using T = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<T, bool>) {
      member = !member;
    } else if constexpr (std::is_enum_v<T>) {
      for (const auto& [name, value] : EnumNames<T>::kNames) {
        if (value != T{}) member = value;
      }
    } else if constexpr (std::is_same_v<T, double>) {
      member += 0.1;
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      member = (uint64_t{1} << 63) + 12345;
    } else if constexpr (std::is_arithmetic_v<T>) {
      member += 7;
    } else if constexpr (std::is_same_v<T, std::string>) {
      member = std::string(key) + " \"ü\n";
    } else {
      member = {"a", "b"};
    }
  });
  return spec;
}

TEST(JobJsonTest, EveryMemberComesBackEqual) {
  const JobSpec spec = Altered();
  const nlohmann::json json = ParseJson(DumpJson(ToJson(spec)));
  const auto back = FromJson(json);
  ASSERT_TRUE(back.ok()) << back.status();
  std::vector<std::string> expected, actual;
  VisitSpec(spec, [&](std::string_view key, const auto& m) {
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(m)>>) {
      expected.push_back(std::string(key) + std::string(EnumName(m)));
    } else {
      expected.push_back(std::string(key) + DumpJson(nlohmann::json(m)));
    }
  });
  VisitSpec(*back, [&](std::string_view key, const auto& m) {
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(m)>>) {
      actual.push_back(std::string(key) + std::string(EnumName(m)));
    } else {
      actual.push_back(std::string(key) + DumpJson(nlohmann::json(m)));
    }
  });
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(ToJson(*back), ToJson(spec));
}

TEST(JobJsonTest, LayoutFollowsTheJobFile) {
  const nlohmann::json json = ToJson(JobSpec());
  EXPECT_EQ(json["hyperparameters"]["parallelism"]["sharding"], "ddp");
  EXPECT_EQ(json["training"]["validation"]["evaluation_strategy"], "steps");
  EXPECT_EQ(json["lora"]["r"], 16);
}

TEST(JobJsonTest, AMissingKeyKeepsItsDefault) {
  const auto spec = FromJson(ParseJson(R"({"lora": {"r": 4}})"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->lora.r, 4);
  EXPECT_EQ(spec->lora.alpha, 32);
}

TEST(JobJsonTest, UnknownKeysAndWrongTypesNameTheKey) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {R"({"lora": {"rr": 4}})", "unknown key lora.rr"},
           {R"({"lora": {"r": "4"}})", "lora.r has a wrong type"},
           {R"({"lora": {"r": 99999999999}})", "lora.r has a wrong type"},
           {R"({"training": {"mode": "none"}})", "training.mode has a wrong type"},
           {R"({"lora": {"target_modules": [1]}})", "lora.target_modules has a wrong type"},
           {R"([])", "must be a JSON object"}}) {
    const auto spec = FromJson(ParseJson(text));
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_THAT(std::string(Message(spec.status())), HasSubstr(says));
  }
}

}  // namespace
}  // namespace sft::spec
