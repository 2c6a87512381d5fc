#include "common/spec/value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sft::spec {
namespace {

const Field& F(std::string_view key) { return *FindField(key); }

TEST(ParseTextTest, BooleansHaveTheUsualWords) {
  for (const char* word : {"true", "1", "yes", "on", "TRUE", " true "}) {
    EXPECT_EQ(ParseText(F("data.packing"), word).value(), Value(true)) << word;
  }
  for (const char* word : {"false", "0", "no", "off", "False"}) {
    EXPECT_EQ(ParseText(F("data.packing"), word).value(), Value(false)) << word;
  }
  EXPECT_FALSE(ParseText(F("data.packing"), "maybe").ok());
}

TEST(ParseTextTest, NumbersMustBeWhole) {
  EXPECT_EQ(ParseText(F("lora.r"), "+8").value(), Value(int64_t{8}));
  for (const char* text : {"", "8x", "8.5", "0x8", "1e3", "99999999999999999999"}) {
    EXPECT_FALSE(ParseText(F("lora.r"), text).ok()) << text;
  }
  EXPECT_EQ(ParseText(F("hyperparameters.learning_rate"), "1e-4").value(), Value(1e-4));
  for (const char* text : {"nan", "inf", "0", "-1", "1e-4x"}) {
    EXPECT_FALSE(ParseText(F("hyperparameters.learning_rate"), text).ok()) << text;
  }
}

TEST(ParseTextTest, ListsAreTypedWithCommasOrAsToml) {
  const Value expected = std::vector<std::string>{"q_proj", "v_proj"};
  EXPECT_EQ(ParseText(F("lora.target_modules"), "q_proj,v_proj").value(), expected);
  EXPECT_EQ(ParseText(F("lora.target_modules"), "[\"q_proj\", 'v_proj']").value(), expected);
  EXPECT_FALSE(ParseText(F("lora.target_modules"), "[]").ok());
}

TEST(ParseTextTest, EveryDefaultOfTheTableIsLegal) {
  for (const Field* field : Fields()) {
    if (!field->derived.empty() || field->type == Type::kString) continue;
    const auto value = ParseText(*field, field->def);
    EXPECT_TRUE(value.ok()) << field->key << ": " << value.status();
  }
}

TEST(CheckTest, AWholeNumberStandsForAFloat) {
  EXPECT_EQ(Check(F("hyperparameters.n_epochs"), Value(int64_t{2})).value(), Value(2.0));
}

TEST(CheckTest, BothEndsOfARangeAreLegal) {
  const Field& field = F("hyperparameters.warmup_ratio");
  EXPECT_TRUE(Check(field, Value(0.0)).ok());
  EXPECT_TRUE(Check(field, Value(1.0)).ok());
  EXPECT_FALSE(Check(field, Value(-0.01)).ok());
  EXPECT_FALSE(Check(field, Value(1.01)).ok());
  EXPECT_FALSE(Check(F("hyperparameters.n_epochs"), Value(0.0)).ok());
}

TEST(CheckTest, ADurationIsANumberWithAUnit) {
  const Field& field = F("compute.unreachable_after");
  EXPECT_EQ(Check(field, Value(std::string("2m"))).value(), Value(std::string("2m")));
  for (const Value& bare : {Value(int64_t{90}), Value(std::string("90"))}) {
    const auto refused = Check(field, bare);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(Message(refused.status()).find("without a unit; write \"90h\" for hours or \"90s\""),
              std::string_view::npos)
        << refused.status();
  }
  EXPECT_EQ(Check(F("scheduling.time_limit"), Value(int64_t{0})).value(), Value(std::string("0s")));
  for (const char* text : {"", "soon", "9s", "-1m", "1.5h"}) {
    EXPECT_FALSE(Check(field, Value(std::string(text))).ok()) << text;
  }
  EXPECT_FALSE(Check(field, Value(true)).ok());
}

TEST(CheckTest, SynonymsBecomeTheCanonicalChoice) {
  EXPECT_EQ(Check(F("training.mode"), Value(std::string("FFT"))).value(),
            Value(std::string("full_finetune")));
}

TEST(ToTextTest, NumbersReadBackEqual) {
  EXPECT_EQ(ToText(Value(5e-6)), "5e-06");
  EXPECT_EQ(ToText(Value(0.1)), "0.1");
  EXPECT_EQ(ToText(Value(std::vector<std::string>{"a", "b"})), "a,b");
}

}  // namespace
}  // namespace sft::spec
