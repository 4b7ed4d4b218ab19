package kafka

import "github.com/twmb/franz-go/pkg/kversion"

var versions = []struct {
	name     string
	versions *kversion.Versions
}{
	{"1.0", kversion.V1_0_0()}, {"2.0", kversion.V2_0_0()}, {"2.1", kversion.V2_1_0()}, {"2.8", kversion.V2_8_0()},
	{"3.9", kversion.V3_9_0()}, {"4.0", kversion.V4_0_0()}, {"newest", kversion.Stable()},
}
