#include "worker/engine/model/config.h"

#include <gtest/gtest.h>

#include <string>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

TEST(ConfigTest, ARefusalNamesTheFolderAndTheKey) {
  try {
    ParseConfig(R"({"model_type": "gemma2"})", "models/tiny");
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find("models/tiny: config.json: \"model_type\""), 0U);
    EXPECT_EQ(error.code(), "bad_model");
  }
  EXPECT_THROW(ReadConfig("/nonexistent"), UserError);
}

}  // namespace
}  // namespace sft::engine
