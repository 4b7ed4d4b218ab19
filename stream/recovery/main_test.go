package recovery_test

import (
	"testing"

	"github.com/streamdp/streamdp/internal/testing/streamtest"
)

func TestMain(m *testing.M) { streamtest.Main(m) }
